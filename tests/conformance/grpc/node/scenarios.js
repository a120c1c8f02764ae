'use strict';
// Runs scenarios with the official gRPC client for Node.js and prints one JSON line for each: name, saw.
// Arguments: host:port of the server, prefix of topics and groups, scenario names. The runner makes the topics and
// groups, see scenarios.py.

const crypto = require('crypto');
const readline = require('readline');
const { Producer, SimpleConsumer, PushConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [ endpoints, prefix, ...names ] = process.argv.slice(2);
const PATIENCE_MS = 30000;
const RESTART_PATIENCE_MS = 150000; // a gRPC channel may wait 120 s before it connects again
const INVISIBLE_MS = 10000; // the shortest time that the official server accepts
const POLL_MS = 5000;
const NUDGE_MS = 3000;
const logger = { info() {}, debug() {}, warn() {}, error() {} };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

class Peer {
  constructor(name) {
    this.topic = `T_${prefix}${name}`;
    this.group = `G_${prefix}${name}`;
    this.options = { endpoints, namespace: '', logger };
    this.clients = [];
  }

  // The same, for clients that use TLS or an account.
  with(options) {
    return Object.assign(Object.create(Peer.prototype), this, { options: { ...this.options, ...options } });
  }

  producer(checker) {
    return this.started(new Producer({ ...this.options, topic: this.topic, checker }));
  }

  consumer(expression = FilterExpression.SUB_ALL, topic = this.topic) {
    const subscriptions = new Map([[ topic, expression ]]);
    return this.started(new SimpleConsumer({ ...this.options, consumerGroup: this.group, subscriptions, awaitDuration: POLL_MS }));
  }

  push(listener) {
    const subscriptions = new Map([[ this.topic, FilterExpression.SUB_ALL ]]);
    return this.started(new PushConsumer({ ...this.options, consumerGroup: this.group, subscriptions, messageListener: listener }));
  }

  message(body, fields = {}) {
    return { topic: this.topic, body: Buffer.from(body), ...fields };
  }

  async started(client) {
    await within(PATIENCE_MS, client.startup());
    this.clients.push(client);
    return client;
  }

  async close() {
    for (const client of this.clients.reverse()) {
      await outcome(() => within(PATIENCE_MS, client.shutdown())); // a failing shutdown is no failing scenario
    }
  }
}

// Records messages; `fails` says which deliveries are not consumed.
class Listener {
  constructor(fails = () => false) {
    this.seen = [];
    this.fails = fails;
  }

  consume(message) {
    this.seen.push(message);
    const times = this.seen.filter(other => text(other) === text(message)).length;
    return this.fails(text(message), times) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }

  without(body) {
    return this.seen.filter(message => text(message) !== body);
  }
}

function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`no answer in ${ms} ms`)), ms); });
  return Promise.race([ promise, late ]).finally(() => clearTimeout(timer));
}

async function until(holds, ms = PATIENCE_MS) {
  for (const deadline = Date.now() + ms; !holds() && Date.now() < deadline;) {
    await sleep(50);
  }
}

// Receives until there are as many messages or the time is over; `step` is done with each at once.
async function receive(consumer, count, ms = PATIENCE_MS, step = async () => {}) {
  const found = [];
  for (const deadline = Date.now() + ms; found.length < count && Date.now() < deadline;) {
    let messages = [];
    try {
      messages = await consumer.receive(16, INVISIBLE_MS);
    } catch (error) { // the server may be away
      await sleep(500);
    }
    for (const message of messages) {
      await step(message);
      found.push(message);
    }
  }
  return found;
}

// Receives and acknowledges messages.
function received(consumer, count, ms) {
  return receive(consumer, count, ms, message => consumer.ack(message));
}

async function outcome(work) {
  try {
    await work();
  } catch (error) {
    return failure(error);
  }
  return { ok: true };
}

function failure(error) {
  return { error: error.constructor.name, code: typeof error.code === 'number' ? error.code : null, text: error.message };
}

const text = message => message.body.toString();
const bodies = messages => messages.map(text);
const attempts = messages => messages.map(message => [ text(message), message.deliveryAttempt ]);
const sorted = rows => rows.sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));

// What a consumer sees of a message, except ids and times.
function shown(message) {
  const body = message.body;
  return {
    body: body.length < 100 ? body.toString() : [ body.length, crypto.createHash('md5').update(body).digest('hex') ],
    tag: message.tag ?? null,
    keys: [ ...message.keys ].sort(),
    properties: Object.fromEntries([ ...message.properties ].sort()),
    group: message.messageGroup ?? null,
    delivery_timestamp: message.deliveryTimestamp !== undefined,
    attempt: message.deliveryAttempt,
    born_host: message.bornHost !== '',
    corrupted: message.corrupted,
  };
}

function orders(messages) {
  const found = {};
  for (const group of [ 'one', 'two' ]) {
    found[group] = bodies(messages.filter(message => message.messageGroup === group));
  }
  return found;
}

async function filtered(peer, expression, wanted) {
  const consumer = await peer.consumer(expression);
  const producer = await peer.producer();
  await receive(consumer, 1, 1000); // makes the subscription known before the messages are sent
  for (let i = 0; i < 6; i++) {
    const properties = new Map([[ 'number', String(i) ], [ 'colour', i % 2 ? 'red' : 'blue' ]]);
    await producer.send(peer.message(`message ${i}`, { tag: `Tag${'ABC'[i % 3]}`, properties }));
  }
  const messages = bodies(await received(consumer, wanted)).sort();
  return { messages, more: bodies(await received(consumer, 1, 4000)) };
}

// Consumes with a listener that fails. The official server may leave a waiting consumer asleep when a message becomes
// visible again; further messages wake it.
async function failing(peer, listener, wanted, afterwards) {
  const producer = await peer.producer();
  await peer.push(listener);
  for (const body of [ 'good', 'bad' ]) {
    await producer.send(peer.message(body));
  }
  for (let i = 0; i < 20 && listener.without('more').length < wanted; i++) {
    await sleep(NUDGE_MS);
    await producer.send(peer.message('more'));
  }
  for (let i = 0; i < afterwards; i++) {
    await sleep(NUDGE_MS);
    await producer.send(peer.message('more'));
  }
  await sleep(1000);
  return { messages: sorted(attempts(listener.without('more'))) };
}

const scenarios = {
  async send_normal(peer) {
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    const properties = new Map([[ 'colour', 'green' ], [ 'größe', 'très grand 大' ]]);
    const receipts = [
      await producer.send(peer.message('plain', { tag: 'TagA', keys: [ 'key1', 'key2' ], properties })),
      await producer.send(peer.message('bare')),
      await producer.send(peer.message('x'.repeat(3000000))),
      await producer.send(peer.message('later', { tag: 'TagB' })),
    ];
    const messages = await received(consumer, 4);
    const ids = sorted(receipts.map(receipt => receipt.messageId));
    const same = JSON.stringify(ids) === JSON.stringify(sorted(messages.map(message => message.messageId)));
    return { ids: same, messages: sorted(messages.map(shown)) };
  },

  async send_fifo(peer) {
    const producer = await peer.producer();
    for (let i = 0; i < 6; i++) {
      for (const messageGroup of [ 'one', 'two' ]) {
        await producer.send(peer.message(`${messageGroup} ${i}`, { messageGroup }));
      }
    }
    const messages = await received(await peer.consumer(), 12);
    return { orders: orders(messages), first: sorted(messages.map(shown))[0] };
  },

  async send_delay(peer) {
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    const due = Date.now() + 3000;
    const receipt = await producer.send(peer.message('due', { deliveryTimestamp: new Date(due) }));
    await producer.send(peer.message('past', { deliveryTimestamp: new Date(due - 60000) }));
    const messages = [];
    let early = 0;
    for (const deadline = Date.now() + PATIENCE_MS; messages.length < 2 && Date.now() < deadline;) {
      for (const message of await received(consumer, 1, 5000)) {
        early += text(message) === 'due' && Date.now() < due - 500 ? 1 : 0;
        messages.push(message);
      }
    }
    const exact = messages.filter(message => text(message) === 'due').map(message => message.deliveryTimestamp?.getTime() === due);
    return { early, exact, recall_handle: Boolean(receipt.recallHandle), messages: messages.map(shown) };
  },

  async recall(peer) {
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    const deliveryTimestamp = new Date(Date.now() + 6000);
    const first = await producer.send(peer.message('recalled', { deliveryTimestamp }));
    const second = await producer.send(peer.message('kept', { deliveryTimestamp }));
    const recalled = await outcome(() => producer.recallMessage(peer.topic, first.recallHandle));
    const messages = bodies(await received(consumer, 2, 14000));
    const late = await outcome(() => producer.recallMessage(peer.topic, second.recallHandle));
    const wrong = await outcome(() => producer.recallMessage(peer.topic, 'no-handle'));
    return { recalled, messages, late, wrong };
  },

  async priority(peer) {
    const producer = await peer.producer();
    for (const priority of [ 1, 3, 2, 5 ]) {
      await producer.send(peer.message(`priority ${priority}`, { priority }));
    }
    const messages = await received(await peer.consumer(), 4);
    return { messages: messages.map(message => [ text(message), message.priority ]) };
  },

  async transaction(peer) {
    const asked = new Set();
    const check = async message => {
      asked.add(text(message));
      return text(message).startsWith('commit') ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    };
    const producer = await peer.producer({ check });
    const consumer = await peer.consumer();
    const ends = [];
    for (const body of [ 'commit now', 'roll back now', 'commit later', 'roll back later' ]) {
      const begun = producer.beginTransaction();
      await producer.send(peer.message(body, { tag: 'TagA' }), begun);
      if (body === 'commit now') {
        ends.push(await outcome(() => begun.commit()));
      } else if (body === 'roll back now') {
        ends.push(await outcome(() => begun.rollback()));
      }
    }
    const messages = await received(consumer, 2);
    await until(() => asked.size >= 2);
    messages.push(...await received(consumer, 1, 5000));
    return { ends, asked: [ ...asked ].sort(), messages: sorted(messages.map(shown)) };
  },

  async redelivery(peer) {
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    for (const body of [ 'kept', 'done' ]) {
      await producer.send(peer.message(body, { tag: 'TagA' }));
    }
    const first = await receive(consumer, 2);
    for (const message of first.filter(one => text(one) === 'done')) {
      await consumer.ack(message);
    }
    const began = Date.now();
    const again = await receive(consumer, 1);
    const early = Date.now() - began < INVISIBLE_MS - 3000;
    const late = await outcome(() => consumer.ack(first.find(message => text(message) === 'kept')));
    for (const message of again) {
      await consumer.ack(message);
    }
    return { first: sorted(attempts(first)), again: attempts(again), early, ack_of_expired_handle: late };
  },

  async change_invisible(peer) {
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    await producer.send(peer.message('changed'));
    const found = [];
    for (let i = 0; i < 2; i++) {
      for (const message of await receive(consumer, 1)) {
        await consumer.changeInvisibleDuration(message, 1000);
        found.push(...attempts([ message ]));
      }
    }
    const last = await received(consumer, 1);
    found.push(...attempts(last));
    const again = await outcome(() => consumer.ack(last[0]));
    return { attempts: found, ack_again: again, left: (await receive(consumer, 1, 6000)).length };
  },

  async push(peer) {
    const producer = await peer.producer();
    const listener = new Listener();
    await peer.push(listener);
    for (let i = 0; i < 20; i++) {
      await producer.send(peer.message(`message ${String(i).padStart(2, '0')}`, { tag: 'TagA' }));
    }
    await until(() => listener.seen.length >= 20);
    await sleep(1000);
    return { messages: sorted(attempts(listener.seen)), first: sorted(listener.seen.map(shown))[0] };
  },

  async push_share(peer) {
    const producer = await peer.producer();
    const listeners = [ new Listener(), new Listener() ];
    for (const listener of listeners) {
      await peer.push(listener);
    }
    for (let i = 0; i < 40; i++) {
      await producer.send(peer.message(`message ${i}`));
    }
    await until(() => listeners[0].seen.length + listeners[1].seen.length >= 40);
    await sleep(1000);
    const found = listeners.flatMap(listener => bodies(listener.seen));
    return { distinct: new Set(found).size, deliveries: found.length };
  },

  push_retry: peer => failing(peer, new Listener((body, times) => body === 'bad' && times < 3), 4, 0),

  // The third delivery goes to the dead letters; the runner counts them.
  push_dead: peer => failing(peer, new Listener(body => body === 'bad'), 3, 4),

  async push_fifo(peer) {
    const producer = await peer.producer();
    const listener = new Listener(body => body === 'one 1');
    for (let i = 0; i < 3; i++) {
      for (const messageGroup of [ 'one', 'two' ]) {
        await producer.send(peer.message(`${messageGroup} ${i}`, { messageGroup }));
      }
    }
    await peer.push(listener);
    await until(() => listener.seen.length >= 7);
    await sleep(2000);
    return { orders: orders(listener.seen) };
  },

  filter_tag: peer => filtered(peer, new FilterExpression('TagA || TagC'), 4),

  filter_sql: peer => filtered(peer, new FilterExpression("number > 1 AND colour = 'red'", FilterType.SQL), 2),

  async unknown_topic(peer) {
    const missing = `${peer.topic}_missing`;
    const producer = await peer.producer();
    return {
      send: await outcome(() => producer.send({ topic: missing, body: Buffer.from('lost') })),
      receive: await outcome(async () => (await peer.consumer(FilterExpression.SUB_ALL, missing)).receive(1, INVISIBLE_MS)),
    };
  },

  async wrong_type(peer) {
    const producer = await peer.producer();
    const deliveryTimestamp = new Date(Date.now() + 1000);
    return {
      fifo: await outcome(() => producer.send(peer.message('a', { messageGroup: 'one' }))),
      delay: await outcome(() => producer.send(peer.message('b', { deliveryTimestamp }))),
      normal: await outcome(() => producer.send(peer.message('c'))),
    };
  },

  async too_large(peer) {
    const producer = await peer.producer();
    const many = new Map(Array.from({ length: 129 }, (_, i) => [ `key${i}`, 'value' ]));
    const reserved = new Map([[ 'UNIQ_KEY', 'value' ]]);
    return {
      body: await outcome(() => producer.send(peer.message('x'.repeat(4 * 1024 * 1024 + 1)))),
      properties: await outcome(() => producer.send(peer.message('many', { properties: many }))),
      reserved: await outcome(() => producer.send(peer.message('reserved', { properties: reserved }))),
    };
  },

  async restart(peer) {
    const producer = await peer.producer();
    const sent = new Set();
    let refused = '';
    const send = async (first, last) => {
      for (let i = first; i < last; i++) {
        const deadline = Date.now() + RESTART_PATIENCE_MS;
        for (;;) {
          const saw = await outcome(() => within(PATIENCE_MS, producer.send(peer.message(`message ${i}`))));
          if (saw.ok) {
            break;
          }
          refused = saw.text;
          if (Date.now() > deadline) {
            return;
          }
          await sleep(500);
        }
        sent.add(`message ${i}`);
      }
    };
    await send(0, 20);
    const consumer = await peer.consumer();
    const found = new Set(bodies(await received(consumer, 5)));
    console.log('{"restart": true}');
    const during = send(20, 40);
    const input = readline.createInterface({ input: process.stdin });
    await new Promise(resolve => input.once('line', resolve));
    input.close();
    await during;
    for (const deadline = Date.now() + RESTART_PATIENCE_MS; [ ...sent ].some(body => !found.has(body)) && Date.now() < deadline;) {
      for (const message of await receive(consumer, 1, 10000)) {
        found.add(text(message));
        await outcome(() => consumer.ack(message));
      }
    }
    const lost = [ ...sent ].filter(body => !found.has(body)).sort();
    const unknown = [ ...found ].filter(body => !sent.has(body)).sort();
    return { sent: sent.size, lost: lost.length > 0, unknown, text: `lost: ${lost}; last refusal: ${refused}` };
  },

  async tls(plain) {
    const peer = plain.with({ sslEnabled: true });
    const producer = await peer.producer();
    const consumer = await peer.consumer();
    await producer.send(peer.message('received'));
    const got = bodies(await received(consumer, 1));
    const listener = new Listener();
    await peer.push(listener);
    await producer.send(peer.message('pushed'));
    await until(() => listener.seen.length > 0);
    return { received: got, pushed: bodies(listener.seen) };
  },

  // The runner tells of an account that may do everything; that of guest has the same secret and may do nothing.
  async accounts(peer) {
    const { ACCOUNT_NAME: accessKey, ACCOUNT_SECRET: accessSecret } = process.env;
    const mine = peer.with({ sessionCredentials: { accessKey, accessSecret } });
    await (await mine.producer()).send(mine.message('body'));
    const found = { right: bodies(await received(await mine.consumer(), 1)) };
    const others = {
      wrong_secret: { accessKey, accessSecret: `not-${accessSecret}` },
      unknown: { accessKey: 'nobody', accessSecret },
      guest: { accessKey: 'guest', accessSecret },
      none: undefined,
    };
    for (const [ name, sessionCredentials ] of Object.entries(others)) {
      const other = peer.with({ sessionCredentials });
      found[name] = {
        send: await outcome(async () => (await other.producer()).send(other.message('body'))),
        receive: await outcome(async () => (await other.consumer()).receive(1, INVISIBLE_MS)),
      };
    }
    return found;
  },
};

async function main() {
  const closings = []; // a push consumer ends after its last poll, which may take 20 s
  for (const name of names) {
    const peer = new Peer(name);
    let saw;
    try {
      saw = await scenarios[name](peer);
    } catch (error) {
      const { error: broken, ...rest } = failure(error);
      saw = { broken, ...rest };
    }
    console.log(JSON.stringify({ name, saw }));
    closings.push(peer.close());
  }
  await Promise.all(closings);
  process.exit(0); // timers of the client may still run
}

main();
