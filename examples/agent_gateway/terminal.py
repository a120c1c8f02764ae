"""A client of the gateway: sends a prompt to its session, and prints the answer, however often the gateway is killed:
``python terminal.py SESSION PROMPT [PORT]``.
"""

import json
import sys
import time
import uuid
from http.client import HTTPConnection, HTTPException

SESSION, PROMPT = sys.argv[1:3]
PORT = int(sys.argv[3]) if len(sys.argv) > 3 else 8080
PATH = f"/sessions/{SESSION}"
ID = uuid.uuid4().hex


def send() -> None:
    """Sends the prompt, until the gateway has it; its id tells a repeated prompt from another one."""
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", PORT, timeout=10)
            connection.request("POST", PATH, PROMPT.encode(), {"Idempotency-Key": ID})
            if connection.getresponse().status == 202:
                return
        except (OSError, HTTPException):
            pass
        time.sleep(0.2)


def show() -> None:
    """Prints the answer; connects again behind the last event that was shown."""
    shown, place = -1, 0
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", PORT, timeout=60)
            connection.request("GET", PATH, headers={"Last-Event-ID": str(shown)})
            for line in connection.getresponse():
                name, _, value = line.decode().strip().partition(": ")
                if name == "id":
                    shown = int(value)
                elif name == "data":
                    event = json.loads(value)
                    if event["prompt"] == ID and int(event["place"]) == place:
                        print(event["text"], flush=True)
                        place += 1
                        if event["last"] == "True":
                            return
        except (OSError, HTTPException):
            pass
        time.sleep(0.2)


send()
show()
