// Sends a delayed message and a second one that it takes back, and receives the first: Connect's client for TypeScript.
//
//   npm install && npm run build && npm start http://127.0.0.1:7170     the address of any node
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { MessageService } from "./gen/delay/v1/messages_pb.js";

// With TLS and a token: https://...:7081, and an interceptor that sets the header "authorization".
const transport = createConnectTransport({ baseUrl: process.argv[2] ?? "", httpVersion: "1.1" });
const client = createClient(MessageService, transport);

const seconds = (value: number) => ({ seconds: BigInt(Math.trunc(value)), nanos: Math.round((value % 1) * 1e9) });
const text = (value: string) => ({ case: "bodyText" as const, value });
const after = (value: number) => ({ case: "delay" as const, value: seconds(value) });

const sent = await client.send({
  topic: "orders",
  messages: [
    { when: after(0.5), key: "order-17", content: text("check the payment") },
    { when: after(3600), key: "order-18", content: text("too late") },
  ],
});
for (const one of sent.results) {
  if (one.error) throw new Error(`${one.error.reason}: ${one.error.message}`);
}
const cancelled = await client.cancel({ handles: [sent.results[1]!.handle] });
console.log("order-18:", cancelled.results[0]!.outcome);

receiving: for (;;) {
  const received = await client.receive({ topic: "orders", group: "billing", wait: seconds(20) });
  for (const one of received.deliveries) {
    const body = one.content.case === "body" ? new TextDecoder().decode(one.content.value) : one.content.value;
    console.log(`${one.key}: ${body}`);
    const settled = await client.ack({ receipts: [one.receipt] });
    console.log("done:", settled.results[0]!.settled);
    break receiving;
  }
}
