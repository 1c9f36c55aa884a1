//! Where clients come in: what a connection by this way is, and may say.

use std::sync::Arc;

use crate::limits::Limits;
use crate::tls::Tls;

pub struct Listener {
    pub name: Arc<str>,
    /// `None`: plain text.
    pub tls: Option<Tls>,
    /// Python is asked who calls before a call is taken.
    pub identifies: bool,
    /// Calls that another node has passed on come by here, as their metadata says. Where the listener asks who calls,
    /// it is Python that says so of each caller.
    pub forwards: bool,
    pub max_age_ms: u64,
}

impl Listener {
    /// Plain text, from anybody.
    pub fn plain(limits: &Limits) -> Self {
        Listener {
            name: Arc::from("plain"),
            tls: None,
            identifies: false,
            forwards: true,
            max_age_ms: limits.max_age_ms,
        }
    }
}
