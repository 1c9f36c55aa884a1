//! HTTP/2 of a client, by hand.

pub fn begun() -> Vec<u8> {
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()
}

/// A call that is not ended. body: one frame of what it sends.
pub fn call(stream: u8, path: &str, encoding: &str, body: &[u8]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
    let fields = [(":path", path), (":authority", "edge"), ("content-type", "application/grpc")];
    for (name, value) in fields.into_iter().chain([("grpc-encoding", encoding)]) {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    [frame(1, 4, stream, &block), frame(0, 0, stream, body)].concat()
}

pub fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags, 0, 0, 0, stream]);
    out.extend_from_slice(payload);
    out
}
