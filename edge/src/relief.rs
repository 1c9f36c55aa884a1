//! Looks, while there is not enough room, for the clients that hold it and do nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::now_ms;
use crate::core::Core;
use crate::link::Mail;

const EVERY: Duration = Duration::from_millis(200);
/// Between two rounds through all connections.
const ROUND_MS: u64 = 1_000;
/// For room that does not come by itself; a unary call waits longer (`room_ms`).
const PATIENCE_MS: u64 = 250;
/// A client that reads less than this part of its answers in `unread_ms` does not read them.
const READS_PART: u64 = 8;

/// A connection's unread answers, as they were.
struct Mark {
    at_ms: u64,
    used: u64,
    taken: u64,
}

pub async fn run(core: Arc<Core>) {
    let mut marks = HashMap::new();
    let (mut refused, mut last_round_ms) = (0, 0);
    loop {
        tokio::time::sleep(EVERY).await;
        let now = now_ms();
        if now >= last_round_ms + ROUND_MS && requests_wait(&core, now) {
            last_round_ms = now;
            for link in core.links() {
                link.send(Mail::Relieve);
            }
        }
        let refused_before = std::mem::replace(&mut refused, core.unread.refused());
        if core.unread.is_short() || refused > refused_before {
            cut_unread(&core, &mut marks, now);
        } else {
            marks.clear();
        }
    }
}

fn requests_wait(core: &Core, now: u64) -> bool {
    let long = |since: Option<u64>| since.is_some_and(|since| now > since + PATIENCE_MS);
    long(core.rows_budget.waiting_since_ms()) || long(core.calls_budget.waiting_since_ms())
}

fn cut_unread(core: &Core, marks: &mut HashMap<u32, Mark>, now: u64) {
    let links = core.links();
    marks.retain(|id, _| links.iter().any(|link| link.id == *id));
    for link in links {
        let (used, taken) = (link.unread.used() as u64, link.unread.taken());
        if used == 0 {
            marks.remove(&link.id);
            continue;
        }
        let mark = marks.entry(link.id).or_insert(Mark { at_ms: now, used, taken });
        if now < mark.at_ms + core.limits.unread_ms {
            continue;
        }
        if taken - mark.taken < mark.used.div_ceil(READS_PART) {
            core.figures.connections_cut.add_one();
            link.send(Mail::Cut);
        }
        *mark = Mark { at_ms: now, used, taken };
    }
}
