"""What all packages speak: the protocol and its codec, durations, addresses. No I/O."""
