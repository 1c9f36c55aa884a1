//! The bounds on what clients may make the edge hold or do, and their defaults.

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $default:expr,)*) => {
        #[derive(Debug, Clone)]
        pub struct Limits {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $default,)* }
            }
        }

        impl Limits {
            /// The limit of that name, to be set.
            pub fn get_mut(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
        }
    };
}

limits! {
    /// Connections at once; more are closed as soon as they come.
    max_connections: 10_000,
    /// Calls of one connection, and of all, at once.
    max_streams: 1_000,
    max_calls: 100_000,
    /// Of one message: the largest batch has 9.4 MiB.
    max_message_bytes: (16 << 20) + (64 << 10),
    /// Of the headers of one call, by HTTP/2's count.
    max_header_bytes: 16 << 10,
    /// Enqueue requests that are received, or taken and not answered.
    rows_bytes: 64 << 20,
    rows_bytes_per_connection: 16 << 20,
    /// The same for all other calls: an ack waits for no batch.
    calls_bytes: 64 << 20,
    calls_bytes_per_connection: 16 << 20,
    /// A request that is no larger waits behind no larger one: an ack, one message.
    small_bytes: 64 << 10,
    /// Answers that were handed over and not sent.
    unread_bytes: 128 << 20,
    unread_bytes_per_connection: 32 << 20,
    /// Unsent answers of one stream at which write() says that Python should wait.
    write_bytes: 256 << 10,
    /// What a client may send of one call, or of all calls of a connection, before there is room for it.
    stream_window_bytes: 256 << 10,
    connection_window_bytes: 1 << 20,
    /// The windows of all connections. Those that come when this is used up get the least that HTTP/2 has, 64 KiB.
    windows_bytes: 128 << 20,
    /// Requests of one EnqueueStream, or messages of one other stream, that are not answered or not dealt with.
    max_unanswered: 64,
    max_unread_messages: 4,
    /// Calls of a connection that wait for room at once, and how long a unary one does.
    max_waiting: 64,
    room_ms: 2_000,
    /// Handshakes of TLS under way at once, of each listener. Connections that come then are taken once one is done.
    max_handshakes: 1_000,
    /// For a handshake of TLS; for the connection preface; for the headers of a call; for the next bytes of a request.
    handshake_ms: 10_000,
    /// For a handshake of TLS, while half of max_handshakes are under way.
    crowded_ms: 1_000,
    header_ms: 10_000,
    request_idle_ms: 60_000,
    /// When others wait for room: for a whole request; for a client to read something of its answers.
    slow_request_ms: 10_000,
    unread_ms: 3_000,
    /// A ping after so long without a byte from the client, and the end so long after that.
    keepalive_ms: 60_000,
    keepalive_timeout_ms: 20_000,
    /// Unless a listener has its own: GOAWAY after so long, give or take a tenth, and the end so long after that. 0: never.
    max_age_ms: 0,
    age_grace_ms: 30_000,
    /// Calls that a connection may reset at once, beside one for each call that was answered.
    max_resets: 2_000,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_limit() {
        let mut limits = Limits::default();
        assert!(Limits::NAMES.iter().all(|name| limits.get_mut(name).is_some()));
        assert!(limits.get_mut("max_conections").is_none());
    }
}
