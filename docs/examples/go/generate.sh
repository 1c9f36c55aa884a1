#!/bin/sh
# Makes the client in gen/ from the .proto. PROTOC: protoc (Debian: protobuf-compiler), or another that takes its options.
set -e
cd "$(dirname "$0")"
PROTOS=${PROTOS:-../../../node/delayapi/proto}
export GOBIN="$PWD/.bin"
go install google.golang.org/protobuf/cmd/protoc-gen-go
go install connectrpc.com/connect/cmd/protoc-gen-connect-go
module=Mdelay/v1/messages.proto=example.org/delaycluster/gen,Mdelay/v1/schedules.proto=example.org/delaycluster/gen
${PROTOC:-protoc} -I "$PROTOS" --plugin="$GOBIN/protoc-gen-go" --plugin="$GOBIN/protoc-gen-connect-go" \
  --go_out=. --go_opt=module=example.org/delaycluster,$module \
  --connect-go_out=. --connect-go_opt=module=example.org/delaycluster,$module \
  delay/v1/messages.proto delay/v1/schedules.proto
