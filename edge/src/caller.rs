//! Who calls. Python finds it out, once for each connection and what its calls say of themselves.

use std::any::Any;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::now_ms;

const AUTHORIZATION: HeaderName = HeaderName::from_static("authorization");
const SESSION_TOKEN: HeaderName = HeaderName::from_static("x-mq-session-token");
const SIGNED: &[u8] = b"MQv2-HMAC-SHA1";
const CREDENTIAL: &[u8] = b"Credential=";
const BEARER: &[u8] = b"Bearer ";
const PRINCIPAL: HeaderName = HeaderName::from_static("x-delay-principal");
/// That a connection keeps. A proxy's may have one for each client behind it.
const MAX_KEPT: usize = 64;
/// When those expire that do not.
pub const NEVER: u64 = u64::MAX;

pub struct Caller {
    /// Requests of callers with the same one may be in one group.
    pub key: usize,
    /// Python's own.
    pub identity: Arc<dyn Any + Send + Sync>,
    /// CLOCK_MONOTONIC.
    pub expires_ms: u64,
    /// Whether its calls may be passed on by a node, as their metadata says.
    pub forwards: bool,
}

/// What a call says of its caller.
#[derive(Clone, Default, PartialEq)]
pub struct Credentials {
    /// `Bearer TOKEN` where a RocketMQ client has sent a token in one of its ways.
    pub authorization: Option<HeaderValue>,
    pub principal: Option<HeaderValue>,
}

/// What a call proves itself by: the value of `authorization`, or the token that a RocketMQ client sends beside or
/// inside of it. Its signature changes with each call, and is of its time alone, so it says nothing.
#[derive(PartialEq)]
enum Proof<'a> {
    Value(&'a [u8]),
    Token(&'a [u8]),
}

fn proof(headers: &HeaderMap) -> Option<Proof<'_>> {
    let last = |name: HeaderName| headers.get_all(name).iter().next_back().map(HeaderValue::as_bytes);
    let value = last(AUTHORIZATION);
    let signed = value.and_then(|value| value.strip_prefix(SIGNED));
    if value.is_some() && signed.is_none() {
        return value.map(Proof::Value);
    }
    if let Some(token) = last(SESSION_TOKEN).filter(|token| !token.is_empty()) {
        return Some(Proof::Token(token));
    }
    let key = signed?.split(|&byte| byte == b',').find_map(|part| part.trim_ascii().strip_prefix(CREDENTIAL))?;
    Some(Proof::Token(key)).filter(|_| !key.is_empty())
}

impl Credentials {
    fn are_in(&self, headers: &HeaderMap) -> bool {
        let same = match (self.authorization.as_ref().map(HeaderValue::as_bytes), proof(headers)) {
            (Some(kept), Some(Proof::Value(value))) => kept == value,
            (Some(kept), Some(Proof::Token(token))) => kept.strip_prefix(BEARER) == Some(token),
            (kept, proof) => kept.is_none() && proof.is_none(),
        };
        same && self.principal.as_ref() == headers.get(PRINCIPAL)
    }

    /// With memory of their own: a header's may be a part of all that was read.
    fn of(headers: &HeaderMap) -> Self {
        let authorization = proof(headers).and_then(|proof| match proof {
            Proof::Value(value) => HeaderValue::from_bytes(value).ok(),
            Proof::Token(token) => HeaderValue::from_bytes(&[BEARER, token].concat()).ok(),
        });
        let principal = headers.get(PRINCIPAL).and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        Credentials { authorization, principal }
    }
}

enum State {
    /// Python was asked by this number, and these calls wait.
    Asked {
        number: u32,
        calls: Vec<u32>,
    },
    Known(Arc<Caller>),
}

pub enum Found {
    Known(Arc<Caller>),
    /// The call waits. With what Python must be asked, by a number, if it was not.
    Waits(Option<(u32, Credentials)>),
    /// Too many wait.
    Full,
}

/// The callers of one connection, those that called last at the end.
#[derive(Default)]
pub struct Callers {
    kept: Vec<(Credentials, State)>,
    last: u32,
}

impl Callers {
    pub fn find(&mut self, headers: &HeaderMap, call: u32) -> Found {
        if let Some(at) = self.kept.iter().rposition(|(credentials, _)| credentials.are_in(headers)) {
            match &mut self.kept[at].1 {
                State::Known(caller) if caller.expires_ms > now_ms() => {
                    let caller = caller.clone();
                    self.kept[at..].rotate_left(1);
                    return Found::Known(caller);
                }
                State::Known(_) => drop(self.kept.remove(at)),
                State::Asked { calls, .. } => {
                    calls.push(call);
                    return Found::Waits(None);
                }
            }
        }
        if self.kept.len() >= MAX_KEPT {
            match self.kept.iter().position(|(_, state)| matches!(state, State::Known(_))) {
                Some(oldest) => drop(self.kept.remove(oldest)),
                None => return Found::Full,
            }
        }
        self.last = self.last.wrapping_add(1);
        let (number, credentials) = (self.last, Credentials::of(headers));
        self.kept.push((credentials.clone(), State::Asked { number, calls: vec![call] }));
        Found::Waits(Some((number, credentials)))
    }

    /// Python's answer, `None`: it is nobody. Returns the calls that have waited for it.
    pub fn answer(&mut self, number: u32, caller: Option<&Arc<Caller>>) -> Vec<u32> {
        let asked = |(_, state): &(_, State)| matches!(state, State::Asked { number: asked, .. } if *asked == number);
        let Some(at) = self.kept.iter().position(asked) else { return Vec::new() };
        let (credentials, state) = self.kept.remove(at);
        if let Some(caller) = caller {
            self.kept.push((credentials, State::Known(caller.clone())));
        }
        match state {
            State::Asked { calls, .. } => calls,
            State::Known(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(token).unwrap())])
    }

    fn caller(expires_ms: u64) -> Arc<Caller> {
        Arc::new(Caller { key: 1, identity: Arc::new(()), expires_ms, forwards: false })
    }

    fn ask(callers: &mut Callers, token: &str, call: u32) -> Option<u32> {
        match callers.find(&headers(token), call) {
            Found::Waits(asked) => asked.map(|(number, _)| number),
            _ => panic!("{token} is known, or there is no room"),
        }
    }

    #[test]
    fn python_is_asked_once_for_all_calls_that_say_the_same() {
        let mut callers = Callers::default();
        let number = ask(&mut callers, "a", 1).unwrap();
        assert_eq!(ask(&mut callers, "a", 2), None);
        assert!(ask(&mut callers, "b", 3).is_some());
        assert_eq!(callers.answer(number, Some(&caller(NEVER))), [1, 2]);
        assert!(matches!(callers.find(&headers("a"), 4), Found::Known(_)));
        assert!(callers.answer(number, None).is_empty());
    }

    #[test]
    fn calls_that_a_rocketmq_client_has_signed_say_the_same() {
        let signed = |key: &str, signature: &str| {
            format!("MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}")
        };
        let mut callers = Callers::default();
        let number = ask(&mut callers, &signed("k", "1"), 1).unwrap();
        assert_eq!(ask(&mut callers, &signed("k", "2"), 2), None);
        assert_eq!(callers.answer(number, Some(&caller(NEVER))), [1, 2]);
        assert!(matches!(callers.find(&headers("Bearer k"), 3), Found::Known(_)));
        assert!(ask(&mut callers, &signed("other", "1"), 4).is_some());
        let mut with_token = headers(&signed("other", "3"));
        with_token.insert(SESSION_TOKEN, HeaderValue::from_static("k"));
        assert!(matches!(callers.find(&with_token, 5), Found::Known(_)));
        assert_eq!(Credentials::of(&headers(&signed("", "1"))).authorization, None);
        assert_eq!(Credentials::of(&headers(&signed("k", "1"))).authorization.unwrap(), "Bearer k");
    }

    #[test]
    fn one_that_is_refused_or_has_expired_is_asked_for_again() {
        let mut callers = Callers::default();
        let number = ask(&mut callers, "a", 1).unwrap();
        callers.answer(number, None);
        let number = ask(&mut callers, "a", 2).unwrap();
        callers.answer(number, Some(&caller(now_ms())));
        assert!(ask(&mut callers, "a", 3).is_some());
    }

    #[test]
    fn those_that_have_not_called_for_longest_are_forgotten_first() {
        let mut callers = Callers::default();
        for number in 0..MAX_KEPT as u32 {
            let asked = ask(&mut callers, &number.to_string(), number).unwrap();
            callers.answer(asked, Some(&caller(NEVER)));
        }
        assert!(matches!(callers.find(&headers("0"), 0), Found::Known(_)));
        ask(&mut callers, "new", 0);
        assert!(matches!(callers.find(&headers("0"), 0), Found::Known(_)));
        assert!(ask(&mut callers, "1", 0).is_some());
    }

    #[test]
    fn more_than_can_be_kept_are_not_asked_for_at_once() {
        let mut callers = Callers::default();
        for number in 0..MAX_KEPT as u32 {
            ask(&mut callers, &number.to_string(), number);
        }
        assert!(matches!(callers.find(&headers("new"), 0), Found::Full));
    }
}
