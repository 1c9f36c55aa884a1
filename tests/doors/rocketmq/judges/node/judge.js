// The official Node.js client, told what to do by lines on its standard input, as support/judges.py says.
const readline = require('node:readline');
const { createRequire } = require('node:module');
// what npm has fetched is in the directory that the test names
const { Producer, PushConsumer, SimpleConsumer, FilterExpression, ConsumeResult } =
  createRequire(process.argv[2] + '/')('rocketmq-client-nodejs');
const [endpoints, accessKey, accessSecret, securityToken, tls] = process.argv.slice(3);

const quiet = () => {};
const options = {
  sslEnabled: Boolean(tls), endpoints, namespace: '', logger: { info: quiet, warn: quiet, error: quiet, debug: quiet },
  ...(accessKey ? { sessionCredentials: { accessKey, accessSecret, ...(securityToken ? { securityToken } : {}) } } : {}),
};
const say = (...fields) => process.stdout.write(fields.join('\t') + '\n');
const received = (m) => say(
  'received', m.body.toString(), m.messageId, m.tag ?? '', [...m.keys].sort().join(','), m.deliveryAttempt,
  m.deliveryTimestamp?.getTime() ?? 0, Date.now(),
  [...m.properties].sort().map(([name, value]) => `${name}=${value}`).join(','));

const clients = [];
const held = new Map();
let producer, simple;

async function consume(message) {
  received(message);
  const body = message.body.toString();
  if (body.startsWith('slow')) await new Promise((done) => setTimeout(done, Number(body.split(' ')[1]) * 1000));
  return body.startsWith('fail') && message.deliveryAttempt < 2 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
}

const commands = {
  async producer(...topics) {
    clients.push(producer = new Producer({ ...options, topics }));
    await producer.startup();
    say('ready');
  },
  async send(topic, body, atMs, tag, keys, name, value) {
    const receipt = await producer.send({
      topic, body: Buffer.from(body), ...(tag ? { tag } : {}), ...(keys ? { keys: keys.split(',') } : {}),
      ...(name ? { properties: new Map([[name, value]]) } : {}),
      ...(atMs ? { deliveryTimestamp: new Date(Number(atMs)) } : {}),
    });
    say('stored', receipt.messageId, receipt.recallHandle ?? '');
  },
  async recall(topic, handle) {
    say('recalled', (await producer.recallMessage(topic, handle)).messageId);
  },
  async push(topic, consumerGroup, tags) {
    const subscriptions = new Map([[topic, new FilterExpression(tags)]]);
    const consumer = new PushConsumer({ ...options, consumerGroup, subscriptions, messageListener: { consume } });
    clients.push(consumer);
    await consumer.startup();
    say('ready');
  },
  async simple(topic, consumerGroup, tags, waitSeconds) {
    const subscriptions = new Map([[topic, new FilterExpression(tags)]]);
    const awaitDuration = Number(waitSeconds) * 1000;
    clients.push(simple = new SimpleConsumer({ ...options, consumerGroup, subscriptions, awaitDuration }));
    await simple.startup();
    say('ready');
  },
  async receive(most, leaseSeconds) {
    const found = await simple.receive(Number(most), Number(leaseSeconds) * 1000);
    for (const message of found) {
      held.set(message.messageId, message);
      received(message);
    }
    say('polled', found.length);
  },
  async ack(id) {
    await simple.ack(held.get(id));
    say('acked');
  },
  async change(id, leaseSeconds) {
    await simple.changeInvisibleDuration(held.get(id), Number(leaseSeconds) * 1000);
    say('changed');
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [command, ...args] = line.split('\t');
    try {
      await commands[command](...args);
    } catch (error) {
      say('refused', `${error.name}: ${error.message}`.replaceAll('\n', ' ').replaceAll('\t', ' '));
    }
  }
  for (const client of clients) await client.shutdown();
  say('ended');
  process.exit(0);
})();
