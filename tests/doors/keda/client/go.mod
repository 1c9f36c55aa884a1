module delaycluster.io/tests/doors/keda/client

go 1.24

require (
	github.com/kedacore/keda/v2 v2.17.2
	google.golang.org/grpc v1.71.1
)

require (
	golang.org/x/net v0.38.0 // indirect
	golang.org/x/sys v0.32.0 // indirect
	golang.org/x/text v0.24.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250313205543-e70fdf4c4cb4 // indirect
	google.golang.org/protobuf v1.36.6 // indirect
)
