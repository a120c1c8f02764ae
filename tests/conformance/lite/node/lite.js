'use strict';
// Official lite clients that do what they are told: one line of words, separated by tabs, for each command; one line
// for each answer, "ok" or "error" first. Argument: the gRPC address. The commands are in agents.py.

const readline = require('readline');
const { ConsumeResult, LitePushConsumerImpl, Producer } = require('rocketmq-client-nodejs');

const [ endpoints ] = process.argv.slice(2);
const logger = { info() {}, debug() {}, warn() {}, error() {} };
const options = { endpoints, namespace: '', logger };
const clients = new Map();
const seen = new Map();
const behaviour = new Map();

const commands = {
  async producer(name, topic) {
    const producer = new Producer({ ...options, topic });
    await producer.startup();
    clients.set(name, producer);
  },
  async send(name, topic, liteTopic, body) {
    return (await clients.get(name).send({ topic, liteTopic, body: Buffer.from(body) })).messageId;
  },
  async consumer(name, consumerGroup, bindTopic) {
    seen.set(name, []);
    const messageListener = { consume: message => consume(name, message) };
    const consumer = new LitePushConsumerImpl({ ...options, consumerGroup, bindTopic, messageListener });
    await consumer.startup();
    clients.set(name, consumer);
  },
  async subscribe(name, liteTopic) {
    await clients.get(name).subscribeLite(liteTopic);
  },
  async unsubscribe(name, liteTopic) {
    await clients.get(name).unsubscribeLite(liteTopic);
  },
  async topics(name) {
    return [ ...clients.get(name).getLiteTopicSet() ].sort().join(' ');
  },
  async behave(name, what) {
    behaviour.set(name, what);
  },
  async seen(name) {
    return seen.get(name).join(', ');
  },
  async close(name) {
    const client = clients.get(name);
    clients.delete(name);
    await client.shutdown();
  },
};

async function consume(name, message) {
  seen.get(name).push(`${message.liteTopic || '-'}:${message.body.toString()}:${message.deliveryAttempt}`);
  return behaviour.get(name) === 'failure' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [ command, ...words ] = line.split('\t');
    let answer;
    try {
      answer = `ok\t${await commands[command](...words) || ''}`;
    } catch (error) {
      answer = `error\t${error.name}\t${error.message}`;
    }
    console.log(answer.replaceAll('\n', ' '));
  }
  process.exit(0);
}

main();
