// KEDA's own external scaler, its code as it is: `client METADATA`, METADATA as JSON. Asks as KEDA's controllers do, and
// says of each, a line of JSON, what came of it.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
	"google.golang.org/grpc/status"
)

func say(call string, answer any, err error) {
	line := map[string]any{"call": call, "answer": answer, "code": status.Code(err).String()}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

func main() {
	metadata := map[string]string{}
	if err := json.Unmarshal([]byte(os.Args[1]), &metadata); err != nil {
		panic(err)
	}
	scaler, err := scalers.NewExternalPushScaler(&scalersconfig.ScalerConfig{
		ScalableObjectName: "worker", ScalableObjectNamespace: "shop", ScalableObjectType: "ScaledObject",
		TriggerMetadata: metadata,
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	specs := scaler.GetMetricSpecForScaling(ctx)
	say("GetMetricSpecForScaling", specs, nil)
	if len(specs) > 0 {
		pushed := make(chan bool)
		go scaler.Run(ctx, pushed)
		say("Run", <-pushed, nil)
	}
	values, active, err := scaler.GetMetricsAndActivity(ctx, "s0-replicas")
	say("GetMetricsAndActivity", map[string]any{"values": values, "active": active}, err)
}
