'use strict';
// Runs scenarios with the ali-ons client and prints one JSON line for each: name, ok, details.
// Arguments: name server address, prefix of topics and groups, scenario names (none: all); or: names.

const assert = require('assert');
const { Producer, Consumer, Message } = require('ali-ons');

const [ nameSrv, prefix, ...wanted ] = process.argv.slice(2);
const PATIENCE_MS = 75000; // the client looks for the route of a retry topic every 30 s
// The client uses this only without a name server address.
const httpclient = { request() { throw new Error('no address service in these scenarios'); } };
const warnings = [];
const logger = { info() {}, debug() {}, warn(...text) { warnings.push(text.join(' ')); }, error(...text) { warnings.push(text.join(' ')); } };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!holds()) {
    assert(Date.now() < deadline, `waited in vain for ${what}; client said: ${warnings.slice(-3).join(' | ')}`);
    await sleep(50);
  }
}

class Peer {
  constructor(name) {
    this.topic = `T_${prefix}${name}`;
    this.group = `G_${prefix}${name}`;
    this.closers = [];
  }

  async producer() {
    const producer = new Producer({ nameSrv, httpclient, logger, producerGroup: `${this.group}_producer`, retryTimesWhenSendFailed: 0 });
    producer.on('error', error => warnings.push(error.message));
    await producer.ready();
    this.closers.push(() => producer.close());
    return producer;
  }

  // Starts a consumer that adds messages to `seen` and throws at those for which `fails` is true. Returns a function to
  // stop it.
  async consume(tags, seen, fails = () => false) {
    const consumer = new Consumer({ nameSrv, httpclient, logger, consumerGroup: this.group, rebalanceInterval: 1000 });
    consumer.on('error', error => warnings.push(error.message));
    consumer.subscribe(this.topic, tags, async message => {
      if (message.tags !== 'Setup') { // the runner's message, see run.py
        seen.push(message);
        if (fails(message)) {
          throw new Error('not this time');
        }
      }
    });
    await consumer.ready();
    let open = true;
    const stop = async () => {
      if (open) {
        open = false;
        await consumer.close();
      }
    };
    this.closers.push(stop);
    return stop;
  }

  async send(producer, first, last) {
    for (let i = first; i < last; i++) {
      const message = new Message(this.topic, i % 2 ? 'TagB' : 'TagA', `message ${i}`);
      message.keys = [ `key${i}` ];
      const result = await producer.send(message);
      assert.strictEqual(result.sendStatus, 'SEND_OK');
      assert.match(result.msgId, /^([0-9A-F]{32}|[0-9A-F]{56})$/);
    }
  }

  async close() {
    for (const closer of this.closers.reverse()) {
      await closer();
    }
  }
}

async function expectBodies(seen, count) {
  await until(`${count} messages`, () => seen.length >= count);
  await sleep(300); // a message too many would come now
  assert.strictEqual(seen.length, count);
  assert.strictEqual(new Set(seen.map(message => message.body.toString())).size, count);
}

const scenarios = {
  async send_sync(peer) {
    await peer.send(await peer.producer(), 0, 40);
    return { messages: 40 };
  },

  // Bodies, keys and properties come back unchanged; a body above 4 KiB travels compressed.
  async send_fields(peer) {
    const producer = await peer.producer();
    const bodies = [ 'caf\u00e9 \u6d88\u606f \u{1f4e8}', Buffer.from([ 0, 1, 2, 255 ]), 'a line that repeats. '.repeat(2000) ];
    for (const [ i, body ] of bodies.entries()) {
      const message = new Message(peer.topic, 'TagA', body);
      message.keys = [ `key${i}`, 'shared' ];
      message.properties.index = `${i} \u5f20`;
      await producer.send(message);
    }
    const seen = [];
    await peer.consume('*', seen);
    await expectBodies(seen, bodies.length);
    for (const message of seen) {
      const i = parseInt(message.properties.index, 10);
      assert.strictEqual(message.properties.index, `${i} \u5f20`);
      assert.deepStrictEqual(message.body, Buffer.from(bodies[i]));
      assert.strictEqual(message.keys, `key${i} shared`);
      assert.strictEqual(message.tags, 'TagA');
    }
    return { messages: seen.length };
  },

  async push_concurrent(peer) {
    const producer = await peer.producer();
    await peer.send(producer, 0, 50);
    const seen = [];
    await peer.consume('*', seen);
    await expectBodies(seen, 50);
    await peer.send(producer, 50, 100);
    await expectBodies(seen, 100);
    return { messages: 100 };
  },

  async push_tags(peer) {
    await peer.send(await peer.producer(), 0, 50);
    const seen = [];
    await peer.consume('TagB || TagX', seen);
    await expectBodies(seen, 25);
    assert(seen.every(message => message.tags === 'TagB'));
    return { messages: 25 };
  },

  // The next consumer continues at the offset stored when the first one closed.
  async push_resume(peer) {
    const producer = await peer.producer();
    await peer.send(producer, 0, 20);
    const before = [];
    const stop = await peer.consume('*', before);
    await expectBodies(before, 20);
    await stop();
    await peer.send(producer, 20, 40);
    const after = [];
    await peer.consume('*', after);
    await expectBodies(after, 20);
    assert(after.every(message => parseInt(message.keys.slice(3), 10) >= 20), 'an old message again');
    return { messages: 40 };
  },

  // A message that the consumer throws at goes back to the broker and comes again.
  async retry_later(peer) {
    await peer.send(await peer.producer(), 0, 3);
    const seen = [];
    await peer.consume('*', seen, message => message.body.toString() === 'message 1' && message.reconsumeTimes === 0);
    await until('the second try', () => seen.length >= 4);
    assert.deepStrictEqual(seen.map(message => message.body.toString()).sort(), [ 'message 0', 'message 1', 'message 1', 'message 2' ]);
    const again = seen[3];
    assert.strictEqual(again.body.toString(), 'message 1');
    assert.strictEqual(again.reconsumeTimes, 1);
    assert.strictEqual(again.properties.RETRY_TOPIC, peer.topic);
    return { tries: seen.length };
  },
};

(async () => {
  if (nameSrv === 'names') {
    console.log(Object.keys(scenarios).join('\n'));
    return;
  }
  let failed = false;
  for (const name of wanted.length ? wanted : Object.keys(scenarios)) {
    const peer = new Peer(name);
    let line;
    try {
      line = { name, ok: true, details: await scenarios[name](peer) };
      await peer.close();
    } catch (error) {
      failed = true;
      line = { name, ok: false, details: { error: error.message || error.name, warnings: warnings.slice(-5) } };
    }
    console.log(JSON.stringify(line));
  }
  process.exit(failed ? 1 : 0); // client timers must not keep the process running
})();
