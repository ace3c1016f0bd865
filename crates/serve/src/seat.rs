//! Client connections, and the choice of connections to close when there are too many.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;

use crate::request::ApiError;
use crate::unread::Unread;

/// Maximum number of connections at once. Others wait until one ends.
pub const MOST: usize = 512;

/// Maximum number of connections from one network, other than this machine.
const MOST_OF_ONE: usize = MOST / 4;

/// Number of connections that are kept free for new clients, by closing connections that wait for their clients.
const SPARE: usize = 32;

/// The time that a client always has before its connection is closed for another one.
const PATIENCE: Duration = Duration::from_millis(250);

/// The addresses that count as one client: an IPv4 address, or an IPv6 network with a prefix of 64 bits. A single
/// client usually has all addresses of such an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// This machine. Behind a proxy on this machine, all clients have this machine's address.
    Here,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first half of an IPv6 address.
    V6([u8; 8]),
}

impl Network {
    /// Returns the network of a client.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Here,
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut half = [0; 8];
                half.copy_from_slice(&address.octets()[..8]);
                Self::V6(half)
            }
        }
    }
}

/// The state of a connection, which other tasks read.
pub struct Seat {
    network: Network,
    waits: Mutex<Waits>,
    close: Notify,
}

/// The time at which the server began to wait for the client, and how the connection ends.
struct Waits {
    /// The time at which the wait for a whole request (request line, headers and body) began.
    request: Option<Instant>,
    /// The time at which the wait for the client to read began.
    reading: Option<Instant>,
    /// Whether a part of the request has arrived.
    has_begun: bool,
    /// Whether the connection is being closed for another one.
    is_closing: bool,
    /// The response to the request, if it holds completions.
    answer: Option<Unread>,
    /// The error with which the connection ends.
    refusal: Option<ApiError>,
}

impl Seat {
    fn new(network: Network) -> Self {
        let waits = Waits {
            request: Some(Instant::now()),
            reading: None,
            has_begun: false,
            is_closing: false,
            answer: None,
            refusal: None,
        };
        Self {
            network,
            waits: waits.into(),
            close: Notify::new(),
        }
    }

    fn waits<T>(&self, change: impl FnOnce(&mut Waits) -> T) -> T {
        change(&mut self.waits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a part of a request has arrived.
    pub fn begins(&self) {
        self.waits(|waits| waits.has_begun = true);
    }

    /// Whether a part of a request has arrived, but not the whole.
    pub fn has_begun(&self) -> bool {
        self.waits(|waits| waits.has_begun)
    }

    /// Notes that a whole request has arrived. Until the response ends, the client waits for the server.
    pub fn has_request(&self) {
        self.waits(|waits| (waits.request, waits.has_begun) = (None, false));
    }

    /// Whether the server is answering a whole request.
    pub fn is_answered(&self) -> bool {
        self.waits(|waits| waits.request.is_none())
    }

    /// Notes whether the client leaves a response unread.
    pub fn is_unread(&self, is_unread: bool) {
        self.waits(|waits| match is_unread {
            true => _ = waits.reading.get_or_insert_with(Instant::now),
            false => waits.reading = None,
        });
    }

    /// Notes the response that the client gets.
    pub fn answers(&self, answer: Unread) {
        self.waits(|waits| waits.answer = Some(answer));
    }

    /// Notes the error with which the connection ends.
    pub fn refuse(&self, error: ApiError) {
        self.waits(|waits| waits.refusal = Some(error));
    }

    /// Whether the connection ends with an error.
    pub fn is_refused(&self) -> bool {
        self.waits(|waits| waits.refusal.is_some())
    }

    /// Takes the error with which the connection ends.
    pub fn refusal(&self) -> Option<ApiError> {
        self.waits(|waits| waits.refusal.take())
    }

    /// Whether the client leaves a response unread.
    pub fn leaves_unread(&self) -> bool {
        self.waits(|waits| waits.reading.is_some())
    }

    /// Waits until the connection has to be closed for another one.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Returns the time since which the server has been waiting for the client. Returns `None` if the server does not
    /// wait, or if the connection must not be closed.
    fn idle(&self) -> Option<Instant> {
        self.waits(|waits| {
            let since = waits.request.into_iter().chain(waits.reading).min()?;
            (!waits.is_closing && since.elapsed() >= PATIENCE).then_some(since)
        })
    }

    /// Returns the time since which the client has left its response unread, and the number of bytes that the response
    /// takes from the memory that all clients share. Returns `None` if the client reads, or if the connection must not
    /// be closed.
    fn unread(&self) -> Option<(Instant, usize)> {
        self.waits(|waits| {
            let bytes = waits.answer.as_ref()?.shared();
            let since = waits.reading?;
            let is_unread = bytes > 0 && !waits.is_closing && since.elapsed() >= PATIENCE;
            is_unread.then_some((since, bytes))
        })
    }

    fn is_closing(&self) -> bool {
        self.waits(|waits| waits.is_closing)
    }

    fn close(&self) {
        self.waits(|waits| waits.is_closing = true);
        self.close.notify_one();
    }
}

/// All connections.
#[derive(Default)]
pub struct Seats(Vec<Arc<Seat>>);

impl Seats {
    /// Returns a seat for a client at `address`. If there are too many connections, closes some that wait for their
    /// clients. Returns `None` if the client's network has its maximum number of connections and none of them may be
    /// closed.
    pub fn take(&mut self, address: IpAddr) -> Option<Arc<Seat>> {
        let network = Network::of(address);
        self.make_room();
        let of_one = self.open().filter(|seat| seat.network == network).count();
        if network != Network::Here && of_one >= MOST_OF_ONE && !self.close_one(Some(network)) {
            return None;
        }
        let seat = Arc::new(Seat::new(network));
        self.0.push(seat.clone());
        Some(seat)
    }

    /// Closes connections that wait for their clients, until `SPARE` are free.
    pub fn make_room(&mut self) {
        // Once a connection has ended, only this table refers to its seat.
        self.0.retain(|seat| Arc::strong_count(seat) > 1);
        while self.open().count() > MOST - SPARE && self.close_one(None) {}
    }

    /// Closes connections whose clients leave responses unread, the longest-waiting first, until `missing` bytes are
    /// free.
    pub fn close_unread(&self, mut missing: usize) {
        let unread = self
            .0
            .iter()
            .filter_map(|seat| Some((seat.unread()?, seat)));
        let mut unread: Vec<_> = unread.collect();
        unread.sort_by_key(|((since, _), _)| *since);
        for ((_, bytes), seat) in unread {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(bytes);
            seat.close();
        }
    }

    fn open(&self) -> impl Iterator<Item = &Arc<Seat>> {
        self.0.iter().filter(|seat| !seat.is_closing())
    }

    /// Closes the connection that has waited longest for its client, in `network` or in the network with the most
    /// connections. Returns false if none has waited long enough.
    fn close_one(&self, network: Option<Network>) -> bool {
        let mut counts: BTreeMap<Network, usize> = BTreeMap::new();
        for seat in self.open() {
            *counts.entry(seat.network).or_default() += 1;
        }
        let seats = self
            .open()
            .filter(|seat| network.is_none_or(|network| network == seat.network));
        let idle = seats.filter_map(|seat| Some((seat, seat.idle()?)));
        let first = idle.min_by_key(|(seat, since)| {
            (
                std::cmp::Reverse(counts.get(&seat.network).copied()),
                *since,
            )
        });
        first.inspect(|(seat, _)| seat.close()).is_some()
    }
}

/// Maximum number of bytes of a response that hyper gets at once. hyper copies them, so the rest waits in [`Answer`].
const SLICE: usize = 16 << 10;

/// The body of a response. When it has ended, the server waits for the next request.
pub struct Answer {
    body: Body,
    /// The rest of the current part of the body.
    rest: Bytes,
    /// The seat of the connection.
    seat: Arc<Seat>,
}

impl Answer {
    /// Makes a response with `body` to the client at `seat`.
    pub fn new(body: Body, seat: Arc<Seat>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            seat,
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let count = self.rest.len().min(SLICE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(count)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // hyper asks for the size before it takes the first part.
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.seat
            .waits(|waits| (waits.request, waits.answer) = (Some(Instant::now()), None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Room;

    fn network(text: &str) -> Network {
        Network::of(text.parse().unwrap())
    }

    /// A table with connections of these addresses, which have waited long enough to be closed.
    fn seats(of: &[(&str, usize)]) -> (Seats, Vec<Arc<Seat>>) {
        let (mut seats, mut all) = (Seats::default(), Vec::new());
        for (address, count) in of {
            for _ in 0..*count {
                let seat = seats.take(address.parse().unwrap()).unwrap();
                seat.waits(|waits| {
                    waits.request = waits.request.map(|since| since - 2 * PATIENCE);
                });
                all.push(seat);
            }
        }
        (seats, all)
    }

    fn closing(all: &[Arc<Seat>]) -> Vec<usize> {
        (0..all.len()).filter(|i| all[*i].is_closing()).collect()
    }

    #[test]
    fn clients_of_one_network_count_as_one() {
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("192.0.2.7"), network("::ffff:192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
        for here in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(network(here), Network::Here);
        }
    }

    #[test]
    fn one_network_has_a_share() {
        let (mut seats, all) = seats(&[("192.0.2.1", MOST_OF_ONE), ("192.0.2.2", 3)]);
        assert!(closing(&all).is_empty());
        // Another connection closes the oldest one of the same network.
        let more = seats.take("192.0.2.1".parse().unwrap());
        assert_eq!((more.is_some(), closing(&all)), (true, vec![0]));
        // If all connections of a network are being answered, a new one is refused. Other networks are not affected.
        all.iter().for_each(|seat| seat.has_request());
        more.iter().for_each(|seat| seat.has_request());
        assert!(seats.take("192.0.2.1".parse().unwrap()).is_none());
        assert!(seats.take("192.0.2.2".parse().unwrap()).is_some());
    }

    #[test]
    fn a_proxy_on_this_machine_has_all_connections() {
        let (_, all) = seats(&[("127.0.0.1", MOST - SPARE)]);
        assert!(closing(&all).is_empty());
    }

    #[test]
    fn room_is_made_at_the_cost_of_the_network_with_the_most_connections() {
        let (mut seats, all) = seats(&[("192.0.2.1", 2), ("127.0.0.1", MOST - SPARE - 2)]);
        all[2].has_request();
        all[4].has_request();
        all[4].is_unread(true);
        let new: Vec<_> = (0..4)
            .map(|_| seats.take("192.0.2.9".parse().unwrap()).unwrap())
            .collect();
        // The older connections of 192.0.2.1 stay, and so do connections that are being answered.
        assert_eq!(closing(&all), [3, 5, 6]);
        // Connections that have ended make room too.
        drop((all, new));
        seats.make_room();
        assert_eq!(seats.0.len(), 0);
    }

    #[test]
    fn a_new_client_has_time_to_send_its_request() {
        let mut seats = Seats::default();
        let new: Vec<_> = (0..MOST)
            .map(|_| seats.take(IpAddr::from([127, 0, 0, 1])).unwrap())
            .collect();
        // A slow test may take longer than `PATIENCE`.
        if new[0].waits(|waits| waits.request.unwrap().elapsed()) < PATIENCE {
            assert!(closing(&new).is_empty());
        }
    }

    #[test]
    fn clients_that_leave_much_unread_make_way() {
        let (seats, all) = seats(&[("192.0.2.1", 5)]);
        let room = Room::new(10, 100);
        let ago = |count: u32| Some(Instant::now() - count * PATIENCE);
        for (seat, (bytes, since)) in all.iter().zip([
            (40, ago(2)),
            (30, ago(3)),
            // These clients take only their own memory, are reading, or have only just stopped reading.
            (10, ago(4)),
            (20, None),
            (20, Some(Instant::now())),
        ]) {
            let answer = Unread::new(&room);
            answer.add(bytes).unwrap();
            seat.has_request();
            seat.answers(answer);
            seat.waits(|waits| waits.reading = since);
        }
        seats.close_unread(0);
        assert!(closing(&all).is_empty());
        seats.close_unread(20);
        assert_eq!(closing(&all), [1]);
        seats.close_unread(100);
        assert_eq!(closing(&all), [0, 1]);
        // The end of a response frees its memory.
        assert_eq!(room.missing(), 0);
        drop(Answer::new(Body::empty(), all[0].clone()));
        assert!(all[0].unread().is_none() && room.part().resize(60));
    }

    #[test]
    fn an_answer_is_sent_in_slices() {
        let whole: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        let mut seats = Seats::default();
        let seat = seats.take("192.0.2.1".parse().unwrap()).unwrap();
        let mut answer = Answer::new(Body::from(whole.clone()), seat);
        assert_eq!(answer.size_hint().exact(), Some(100_000));
        let mut sent = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while !answer.is_end_stream() {
            let frame = Pin::new(&mut answer).poll_frame(&mut cx);
            let Poll::Ready(Some(Ok(frame))) = frame else {
                panic!("no frame after {} bytes", sent.len())
            };
            let slice = frame.into_data().unwrap();
            assert!(!slice.is_empty() && slice.len() <= SLICE);
            sent.extend(slice);
        }
        assert_eq!(sent, whole);
    }

    #[test]
    fn who_leaves_an_answer_unread_waits_too() {
        let (seats, all) = seats(&[("127.0.0.1", 1)]);
        all[0].has_request();
        assert!(!seats.close_one(None));
        all[0].waits(|waits| waits.reading = Some(Instant::now() - 2 * PATIENCE));
        all[0].is_unread(true);
        assert!(seats.close_one(None));
        assert!(!seats.close_one(None));
    }
}
