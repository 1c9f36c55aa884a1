// Sends a delayed message and a second one that it takes back, and receives the first: Connect's client for Go, generated
// from messages.proto by ./generate.sh. Run it with the address of any node: go run . http://127.0.0.1:7170
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	delayv1 "example.org/delaycluster/gen"
	"example.org/delaycluster/gen/genconnect"
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	// With TLS and a token: https://...:7081, and an interceptor that sets the header "authorization".
	client := genconnect.NewMessageServiceClient(http.DefaultClient, os.Args[1])

	soon := &delayv1.OutgoingMessage_Delay{Delay: durationpb.New(500 * time.Millisecond)}
	later := &delayv1.OutgoingMessage_Delay{Delay: durationpb.New(time.Hour)}
	sent, err := client.Send(ctx, connect.NewRequest(&delayv1.SendRequest{
		Topic: "orders",
		Messages: []*delayv1.OutgoingMessage{
			{When: soon, Key: "order-17", Content: &delayv1.OutgoingMessage_BodyText{BodyText: "check the payment"}},
			{When: later, Key: "order-18", Content: &delayv1.OutgoingMessage_BodyText{BodyText: "too late"}},
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range sent.Msg.Results {
		if one.Error != nil {
			log.Fatalf("%s: %s", one.Error.Reason, one.Error.Message)
		}
	}
	handles := []string{sent.Msg.Results[1].Handle}
	cancelled, err := client.Cancel(ctx, connect.NewRequest(&delayv1.CancelMessagesRequest{Handles: handles}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("order-18:", cancelled.Msg.Results[0].Outcome)

	for {
		received, err := client.Receive(ctx, connect.NewRequest(&delayv1.ReceiveMessagesRequest{
			Topic: "orders", Group: "billing", Wait: durationpb.New(20 * time.Second),
		}))
		if err != nil {
			log.Fatal(err)
		}
		for _, one := range received.Msg.Deliveries {
			fmt.Printf("%s: %s\n", one.Key, one.GetBody())
			receipts := []string{one.Receipt}
			settled, err := client.Ack(ctx, connect.NewRequest(&delayv1.AckMessagesRequest{Receipts: receipts}))
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("done:", settled.Msg.Results[0].Settled)
			return
		}
	}
}
