#!/bin/sh
# Makes the client in gen/ from the .proto. PROTOC: protoc (Debian: protobuf-compiler), or another that takes its options.
set -e
cd "$(dirname "$0")"
PROTOS=${PROTOS:-../../../node/delayapi/proto}
mkdir -p gen
${PROTOC:-protoc} -I "$PROTOS" --plugin=node_modules/.bin/protoc-gen-es --es_out=gen \
  --es_opt=target=ts,import_extension=js delay/v1/messages.proto delay/v1/schedules.proto
