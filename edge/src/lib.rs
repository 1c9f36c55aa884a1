//! The compiled gRPC server transport of DelayCluster.
//!
//! ```text
//! sockets -> (tls) -> watch -> connection -> message -> decode -> columns -> inbox -> Python (take)
//! sockets <- unread <- connection <- mail <- dispatch <- encode <------------ Python (answer_rows, respond, ...)
//! ```
//! Requests that are received or taken hold room in a `budget`; answers that are not read hold room in `unread`.

#[cfg(target_endian = "big")]
compile_error!("columns are little-endian, and are handed over as they came");

pub mod budget;
pub mod call;
pub mod caller;
pub mod checks;
pub mod clock;
pub mod columns;
pub mod connection;
pub mod core;
pub mod decode;
pub mod dispatch;
pub mod encode;
pub mod figures;
pub mod grpc;
pub mod inbox;
pub mod inflate;
pub mod limits;
pub mod link;
pub mod listener;
pub mod lock;
pub mod message;
#[cfg(feature = "python")]
mod python;
pub mod relief;
pub mod rows;
pub mod server;
pub mod signal;
pub mod single;
pub mod threads;
pub mod timing;
pub mod tls;
pub mod unread;
pub mod watch;
pub mod writes;
