//! Answers: from the mail to the client.

use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use crate::call::Phase;
use crate::core::Shape;
use crate::grpc;
use crate::link::Mail;
use crate::unread::Answer;

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Row { call: number, place, answer } => match self.calls.get_mut(&number) {
                Some(call) if call.method.shape == Shape::RowStream => {
                    call.ordered.put(place, answer);
                    self.send_ordered(number);
                    self.look_at(number);
                }
                Some(_) => self.respond(number, answer),
                None => {}
            },
            Mail::Body { call: number, answer } => match self.calls.get_mut(&number) {
                Some(call) if call.method.shape == Shape::Stream => {
                    let sent = call.write(answer);
                    if !sent {
                        self.cancelled(number);
                    }
                }
                Some(_) => self.respond(number, answer),
                None => {}
            },
            Mail::End { call: number, status } => {
                if let Some(call) = self.remove(number) {
                    let sent = call.end(&status);
                    self.count_end(sent);
                }
            }
            Mail::NoRoom { call: number } => {
                // The call was done: its client must not take this for a refusal.
                self.refuse(number, grpc::UNAVAILABLE, "too many bytes of answers wait to be read");
            }
            Mail::Room { call: number, hold } => {
                if let Some(body) = self.calls.get_mut(&number).and_then(|call| call.body.as_mut()) {
                    body.grant(hold);
                    self.set_phase(number, Phase::Receiving);
                    self.look_at(number);
                }
            }
            Mail::More { call: number } => {
                if let Some(call) = self.calls.get_mut(&number) {
                    call.holds.pop_front();
                    self.look_at(number);
                }
            }
            Mail::Caller { number, found } => self.on_caller(number, found),
            Mail::Relieve => self.give_up_slow(),
            Mail::Drain => self.h2.graceful_shutdown(),
            Mail::Cut => self.is_over = true,
        }
    }

    /// The only answer of a call.
    pub(super) fn respond(&mut self, number: u32, answer: Answer) {
        if let Some(mut call) = self.remove(number) {
            let sent = call.write(answer) && call.end_well();
            self.count_end(sent);
        }
    }

    /// The answers of an EnqueueStream that are next, and its end after the last.
    pub(super) fn send_ordered(&mut self, number: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        while let Some(answer) = call.ordered.pop() {
            self.resets_left = (self.resets_left + 1).min(self.core.limits.max_resets);
            if !call.write(answer) {
                return self.cancelled(number);
            }
        }
        if call.body.is_none() && call.ordered.is_empty() {
            if let Some(call) = self.remove(number) {
                let sent = call.end_well();
                self.count_end(sent);
            }
        }
    }

    pub(super) fn count_end(&mut self, sent: bool) {
        if sent {
            self.resets_left = (self.resets_left + 1).min(self.core.limits.max_resets);
        } else {
            self.count_reset();
        }
    }
}
