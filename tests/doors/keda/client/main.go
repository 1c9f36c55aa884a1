// KEDA's own client of external scalers: `go run . ENDPOINT METADATA`, METADATA as JSON. Makes KEDA's calls in its
// order, and says of each, a line of JSON, what was answered or with which code it was refused.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const roundRobin = `{"loadBalancingConfig": [{"round_robin":{}}]}`

func say(call string, answer any, err error) {
	line := map[string]any{"call": call, "answer": answer, "code": status.Code(err).String()}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

func main() {
	metadata := map[string]string{}
	if err := json.Unmarshal([]byte(os.Args[2]), &metadata); err != nil {
		panic(err)
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithDefaultServiceConfig(roundRobin),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	client := externalscaler.NewExternalScalerClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ref := &externalscaler.ScaledObjectRef{Name: "worker", Namespace: "shop", ScalerMetadata: metadata}
	specs, err := client.GetMetricSpec(ctx, ref)
	say("GetMetricSpec", specs, err)
	stream, err := client.StreamIsActive(ctx, ref)
	if err != nil {
		panic(err)
	}
	pushed, err := stream.Recv()
	say("StreamIsActive", pushed, err)
	values, err := client.GetMetrics(ctx, &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: "replicas"})
	say("GetMetrics", values, err)
	active, err := client.IsActive(ctx, ref)
	say("IsActive", active, err)
}
