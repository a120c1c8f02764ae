"""The two faces of a program: with ``await`` on the loop, and with blocking calls in a thread."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import ModuleType
from typing import Any, TypeVar

from tests.scenario.matrix import hands as _asynchronous
from tests.scenario.matrix import sending as _sending
from tests.scenario.matrix import transactions as _transactions
from tests.scenario.matrix.calls import judged_consumer_call, judged_producer_call, take_outcome
from tests.scenario.matrix.desk import Desk, Member
from tests.scenario.matrix.main_thread import MainThread
from tests.scenario.matrix.make import make_consumer, make_producer

import rucola
import rucola.sync
from rucola.client import loop_thread
from rucola.client.loop_thread import LoopThread
from rucola.testing.virtual_loop import VirtualEventLoop, Working

T = TypeVar("T")


class _Blocking(ast.NodeTransformer):
    """Turns a program with ``await`` into one without."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)  # type: ignore[no-any-return]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        fields = {name: getattr(node, name, None) for name in ast.FunctionDef._fields}
        return self.generic_visit(ast.copy_location(ast.FunctionDef(**fields), node))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.copy_location(ast.For(*(getattr(node, name) for name in node._fields)), node))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.copy_location(ast.With(*(getattr(node, name) for name in node._fields)), node))


def blocking_copy(module: ModuleType) -> ModuleType:
    """A copy of ``module`` with blocking calls."""
    name = f"{module.__name__}_blocking"
    if name in sys.modules:
        return sys.modules[name]
    tree = ast.fix_missing_locations(_Blocking().visit(ast.parse(inspect.getsource(module))))
    copy = ModuleType(name, module.__doc__)
    copy.__file__ = module.__file__
    sys.modules[name] = copy
    exec(compile(tree, str(module.__file__), "exec"), copy.__dict__)
    return copy


blocking_hands = blocking_copy(_asynchronous)
blocking_sending = blocking_copy(_sending)
blocking_transactions = blocking_copy(_transactions)


class VirtualLoopThread(LoopThread):
    """The thread of ``rucola.sync`` with a loop in virtual time; the time stands still while a caller works."""

    def __init__(self, loop: VirtualEventLoop) -> None:
        before = loop_thread._new_event_loop
        loop_thread._new_event_loop = lambda: loop
        try:
            super().__init__("rucola-client")
        finally:
            loop_thread._new_event_loop = before
        self._working = loop.working

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """``LoopThread.start``; virtual time passes while somebody waits for the future."""
        future = super().start(work)
        future.result = lambda timeout=None: self._working.wait(future)  # type: ignore[method-assign]
        return future


class AsyncFace:
    """A program on the loop."""

    def __init__(self, loop: VirtualEventLoop) -> None:
        self._loop = loop

    def make(self, desk: Desk, member: Member) -> Any:
        return make_consumer(rucola, desk, member)

    def make_producer(self, desk: Desk, member: Member, transactions: Any) -> Any:
        return make_producer(rucola, desk, member, transactions)

    async def result(self, future: asyncio.Future[T]) -> T:
        return await future

    def call_in_callback(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        member.workers.append(self._loop.create_task(self.call_producer_from_inside(desk, member, name, message)))

    async def call_producer_from_inside(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        with judged_producer_call(desk, member, name, message) as call:
            await self.call(*call)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, future: Future[T]) -> T:
        return await asyncio.shield(asyncio.wrap_future(future))

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        outcome = function(*arguments)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def call_from_inside(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        with judged_consumer_call(desk, member, name, message) as call:
            take_outcome(desk, member, await self.call(*call))

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], in_main: bool = False) -> asyncio.Future[None]:
        return self._loop.create_task(work())


class SyncFace:
    """A program in a thread of its own."""

    def __init__(self, loop: VirtualEventLoop, main: MainThread | None = None) -> None:
        self._loop, self._main = loop, main
        self._working: Working = loop.working

    def make(self, desk: Desk, member: Member) -> Any:
        return make_consumer(rucola.sync, desk, member)

    def make_producer(self, desk: Desk, member: Member, transactions: Any) -> Any:
        return make_producer(rucola.sync, desk, member, transactions)

    def result(self, future: Future[T]) -> T:
        return self._working.wait(future)

    def call_in_callback(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        with judged_producer_call(desk, member, name, message) as call:  # on the loop's own thread
            call[0](*call[1:])

    def call_producer_from_inside(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        with judged_producer_call(desk, member, name, message) as call:
            self.call(*call)

    def sleep(self, seconds: float) -> None:
        self._working.wait(asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), self._loop))

    def wait(self, future: Future[T]) -> T:
        return self._working.wait(future)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        outcome = function(*arguments)
        if not inspect.isawaitable(outcome):
            return outcome

        async def awaited() -> Any:  # a plain listener of an asynchronous consumer
            return await outcome

        return self._working.wait(asyncio.run_coroutine_threadsafe(awaited(), self._loop))

    def call_from_inside(self, desk: Desk, member: Member, name: str, message: Any) -> None:
        with judged_consumer_call(desk, member, name, message) as call:
            take_outcome(desk, member, self.call(*call))

    def spawn(self, work: Callable[[], None], in_main: bool = False) -> asyncio.Future[None]:
        """Runs ``work`` in a thread; ``in_main`` in the main thread, which alone gets Ctrl-C."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - passed to whoever waits
                self._working.end()
                error.__context__ = None
                done.set_exception(error.with_traceback(None))  # a traceback would keep the loops that were left
            else:
                self._working.end()
                done.set_result(None)

        self._working.begin()
        if in_main and self._main is not None:
            self._main.jobs.put(run)
        else:
            threading.Thread(target=run, name="application", daemon=True).start()
        return asyncio.wrap_future(done, loop=self._loop)
