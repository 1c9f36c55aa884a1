//! The Python module: thin, and the only place that knows of Python. No other thread than Python's own comes here.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use pyo3::buffer::PyBuffer;
use pyo3::buffer::{Element, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use pyo3::{ffi, intern};

use crate::caller::{Caller, NEVER};
use crate::checks;
use crate::clock::now_ms;
use crate::columns::{Group, LARGE_BYTES, Records};
use crate::core::Shape;
use crate::dispatch::StoredRows;
use crate::encode;
use crate::grpc::Status;
use crate::inbox::{Event, Kind};
use crate::limits::Limits;
use crate::listener::Listener;
use crate::server::{Listen, Server};
use crate::single::Door;
use crate::tls::{self, Tls};
use crate::writes::Writes;

const NONE: &[u8] = b"";
/// Of a limit: times of the clock may be added to it.
const HIGHEST: u64 = u64::MAX >> 8;

/// Bytes of the edge's own, which Python reads in place.
#[pyclass(frozen, module = "delayedge")]
struct Buffer {
    bytes: Bytes,
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let bytes = &slf.get().bytes;
        let (start, length) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: the view keeps this object, which is frozen, and so its bytes; they are given out as read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// What is large stays where it is; what is small is cheaper as bytes.
fn to_python(py: Python<'_>, bytes: Bytes) -> PyResult<Py<PyAny>> {
    if bytes.len() > LARGE_BYTES {
        return Ok(Py::new(py, Buffer { bytes })?.into_any());
    }
    Ok(PyBytes::new(py, &bytes).into_any().unbind())
}

fn column(py: Python<'_>, bytes: &[u8]) -> Py<PyBytes> {
    PyBytes::new(py, bytes).unbind()
}

/// Numbers that Python reads as their bytes.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for i64 {}

fn numbers<T: Plain>(py: Python<'_>, values: &[T]) -> Py<PyBytes> {
    // SAFETY: integers have no padding, and any byte may be read as u8.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    column(py, bytes)
}

/// The numbers of an array. An empty one may have any type and alignment: Python's own has none.
fn array<T: Element>(given: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let buffer = PyUntypedBuffer::get(given)?;
    if buffer.item_count() == 0 { Ok(Vec::new()) } else { buffer.into_typed::<T>()?.to_vec(given.py()) }
}

/// What Python gave for a caller.
fn identity(py: Python<'_>, caller: Option<&Arc<Caller>>) -> Option<Py<PyAny>> {
    caller.and_then(|caller| caller.identity.downcast_ref::<Py<PyAny>>()).map(|identity| identity.clone_ref(py))
}

#[pyclass(frozen, get_all, name = "Rows", module = "delayedge")]
struct PyRows {
    topic: String,
    queue: u32,
    door: Option<&'static str>,
    identity: Option<Py<PyAny>>,
    forwarded: bool,
    nbytes: usize,
    time: Py<PyBytes>,
    relative: Py<PyBytes>,
    size: Py<PyBytes>,
    key: Py<PyBytes>,
    tag: Py<PyBytes>,
    records: Py<PyAny>,
    count: Py<PyBytes>,
    producer: Py<PyBytes>,
    number: Py<PyBytes>,
    token: Py<PyBytes>,
    deadline_ms: Py<PyBytes>,
}

impl PyRows {
    fn new(py: Python<'_>, group: Group) -> PyResult<Self> {
        let records = match group.records {
            Records::Joined(joined) => Bytes::from(joined),
            Records::Whole(whole) => whole,
        };
        Ok(PyRows {
            topic: group.topic,
            queue: group.queue,
            door: group.door.map(Door::name),
            identity: identity(py, group.caller.as_ref()),
            forwarded: group.forwarded,
            nbytes: group.nbytes,
            time: column(py, &group.time),
            relative: column(py, &group.relative),
            size: column(py, &group.size),
            key: column(py, &group.key),
            tag: column(py, &group.tag),
            records: to_python(py, records)?,
            count: numbers(py, &group.count),
            producer: numbers(py, &group.producer),
            number: numbers(py, &group.number),
            token: numbers(py, &group.token),
            deadline_ms: numbers(py, &group.deadline_ms),
        })
    }
}

#[pyclass(frozen, get_all, name = "Event", module = "delayedge")]
struct PyEvent {
    token: u64,
    kind: Py<PyAny>,
    method: Option<String>,
    body: Option<Py<PyAny>>,
    peer: Option<String>,
    listener: Option<String>,
    identity: Option<Py<PyAny>>,
    names: Vec<String>,
    certificate: Option<Py<PyBytes>>,
    authorization: Option<String>,
    principal: Option<String>,
    forwarded: bool,
    metadata: Vec<(String, String)>,
    seconds_left: Option<f64>,
    reason: String,
}

impl PyEvent {
    fn new(py: Python<'_>, event: Event, now_ms: u64) -> PyResult<Self> {
        let kind = match event.kind {
            Kind::Call => intern!(py, "call"),
            Kind::Message => intern!(py, "message"),
            Kind::HalfClosed => intern!(py, "half_closed"),
            Kind::Gone => intern!(py, "gone"),
            Kind::Writable => intern!(py, "writable"),
            Kind::Sent => intern!(py, "sent"),
            Kind::Drained => intern!(py, "drained"),
            Kind::Identify => intern!(py, "identify"),
            Kind::Failed => intern!(py, "failed"),
            Kind::Left => intern!(py, "left"),
        };
        let begun = event.begun.as_ref();
        let asked = event.question.as_deref();
        let named = |(name, value): &(HeaderName, String)| (name.to_string(), value.clone());
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let seconds_left = begun
            .filter(|begun| begun.deadline_ms >= 0)
            .map(|begun| (begun.deadline_ms as u64).saturating_sub(now_ms) as f64 / 1_000.0);
        Ok(PyEvent {
            token: event.token,
            kind: kind.clone().into_any().unbind(),
            method: begun.map(|begun| begun.method.to_string()),
            peer: begun.map(|begun| &begun.peer).or(asked.map(|asked| &asked.peer)).map(ToString::to_string),
            listener: begun
                .map(|begun| &begun.listener)
                .or(asked.map(|asked| &asked.listener))
                .map(ToString::to_string),
            identity: identity(py, begun.and_then(|begun| begun.caller.as_ref())),
            names: asked.map_or(Vec::new(), |asked| asked.shown.names.clone()),
            certificate: asked
                .map(|asked| &asked.shown.certificate)
                .filter(|der| !der.is_empty())
                .map(|der| PyBytes::new(py, der).unbind()),
            authorization: asked.and_then(|asked| asked.credentials.authorization.as_ref()).map(text),
            principal: asked.and_then(|asked| asked.credentials.principal.as_ref()).map(text),
            forwarded: begun.is_some_and(|begun| begun.forwarded),
            metadata: begun.map_or(Vec::new(), |begun| begun.metadata.iter().map(named).collect()),
            seconds_left,
            // Messages are parsed by what wants bytes, so there is no view over them.
            body: event.body.map(|body| PyBytes::new(py, &body).into_any().unbind()),
            reason: event.reason.into_owned(),
        })
    }
}

fn shape(path: &str, kind: &str) -> PyResult<Shape> {
    match kind {
        "unary" => Ok(Shape::Row),
        "stream" => Ok(Shape::RowStream),
        _ => Door::named(kind).map(Shape::Single).ok_or_else(|| {
            PyValueError::new_err(format!("rows: {path} is \"unary\", \"stream\" or a door's, not {kind:?}"))
        }),
    }
}

fn limits_of(given: Option<&Bound<'_, PyDict>>) -> PyResult<Limits> {
    let mut limits = Limits::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        match limits.get_mut(&name) {
            Some(limit) => *limit = value.extract::<u64>()?.min(HIGHEST),
            None => {
                let known = Limits::NAMES.join(", ");
                return Err(PyTypeError::new_err(format!("there is no limit {name}; there are {known}")));
            }
        }
    }
    Ok(limits)
}

fn status(code: u32, message: String, details: &[u8]) -> Status {
    Status { code, message, details: Bytes::copy_from_slice(details) }
}

/// An address, or the descriptor of a socket that listens.
fn listen_of(listen: &Bound<'_, PyAny>) -> PyResult<Listen> {
    let Ok(descriptor) = listen.extract::<i32>() else { return Ok(Listen::Address(listen.extract()?)) };
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("{descriptor} is no descriptor of a socket")));
    }
    // SAFETY: it is not -1, and is duplicated at once: one that is not open is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
    Ok(Listen::Socket(socket))
}

#[pyclass(frozen, module = "delayedge")]
struct Edge {
    server: Server,
}

#[pymethods]
impl Edge {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "by name in Python")]
    #[pyo3(signature = (listen, *, rows, unary, streams, metadata=Vec::new(), threads=1, busy=NONE, expired=NONE, **limits))]
    fn new(
        listen: Option<&Bound<'_, PyAny>>, rows: &Bound<'_, PyDict>, unary: Vec<String>, streams: Vec<String>,
        metadata: Vec<String>, threads: usize, busy: &[u8], expired: &[u8], limits: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut methods = Vec::new();
        for (path, kind) in rows {
            let path: String = path.extract()?;
            let shape = shape(&path, &kind.extract::<String>()?)?;
            methods.push((path, shape));
        }
        methods.extend(unary.into_iter().map(|path| (path, Shape::Unary)));
        methods.extend(streams.into_iter().map(|path| (path, Shape::Stream)));
        let (busy, expired) = (Bytes::copy_from_slice(busy), Bytes::copy_from_slice(expired));
        let name =
            |name: String| name.parse().map_err(|_| PyValueError::new_err(format!("{name:?} names no metadata")));
        let metadata = metadata.into_iter().map(name).collect::<PyResult<_>>()?;
        let server = Server::start(methods, metadata, limits_of(limits)?, busy, expired, threads)?;
        if let Some(listen) = listen {
            server.listen(listen_of(listen)?, Listener::plain(&server.core.limits))?;
        }
        Ok(Edge { server })
    }

    #[allow(clippy::too_many_arguments, reason = "by name in Python")]
    #[pyo3(signature = (listen, name, *, tls=false, identifies=false, forwards=false, max_age_ms=None))]
    fn listen(
        &self, listen: &Bound<'_, PyAny>, name: &str, tls: bool, identifies: bool, forwards: bool,
        max_age_ms: Option<u64>,
    ) -> PyResult<u16> {
        if self.server.listener(name).is_some() {
            return Err(PyValueError::new_err(format!("there is a listener {name} already")));
        }
        let limits = &self.server.core.limits;
        let listener = Listener {
            name: Arc::from(name),
            tls: tls.then(|| Tls::new(limits)),
            identifies,
            forwards,
            max_age_ms: max_age_ms.unwrap_or(limits.max_age_ms).min(HIGHEST),
        };
        self.server.listen(listen_of(listen)?, listener)?;
        Ok(self.server.listener(name).map_or(0, |(_, address)| address.port()))
    }

    #[pyo3(signature = (name, chain, key, client_roots=None))]
    fn set_certificates(&self, name: &str, chain: &[u8], key: &[u8], client_roots: Option<&[u8]>) -> PyResult<()> {
        let found = self.server.listener(name);
        let Some(tls) = found.as_ref().and_then(|(listener, _)| listener.tls.as_ref()) else {
            return Err(PyValueError::new_err(format!("there is no listener {name} with TLS")));
        };
        tls.set(tls::config(chain, key, client_roots).map_err(PyValueError::new_err)?);
        Ok(())
    }

    #[pyo3(signature = (token, identity, seconds_left=None, *, forwards=false))]
    fn identify(&self, token: u64, identity: Py<PyAny>, seconds_left: Option<f64>, forwards: bool) {
        let expires_ms = seconds_left.map_or(NEVER, |left| now_ms().saturating_add((left.max(0.0) * 1_000.0) as u64));
        let key = identity.as_ptr() as usize;
        let identity: Arc<dyn Any + Send + Sync> = Arc::new(identity);
        self.server.identify(token, Ok(Caller { key, identity, expires_ms, forwards }));
    }

    #[pyo3(signature = (token, code, message, details=NONE))]
    fn refuse_caller(&self, token: u64, code: u32, message: String, details: &[u8]) {
        self.server.identify(token, Err(status(code, message, details)));
    }

    #[getter]
    fn port(&self) -> Option<u16> {
        self.server.address().map(|address| address.port())
    }

    fn fileno(&self) -> i32 {
        self.server.core.inbox.fileno()
    }

    #[pyo3(signature = (max_bytes=16 << 20))]
    fn take(&self, py: Python<'_>, max_bytes: usize) -> PyResult<(Vec<PyRows>, Vec<PyEvent>)> {
        let (groups, events) = self.server.core.inbox.take(max_bytes);
        let groups = groups.into_iter().map(|group| PyRows::new(py, group)).collect::<PyResult<_>>()?;
        let now = now_ms();
        let events = events.into_iter().map(|event| PyEvent::new(py, event, now)).collect::<PyResult<_>>()?;
        Ok((groups, events))
    }

    #[allow(clippy::too_many_arguments, reason = "the columns of one answer, by name in Python")]
    #[pyo3(signature = (token, count, uid, first_seq, due=None, duplicate=None, *, queue=0))]
    fn answer_rows(
        &self, token: &Bound<'_, PyAny>, count: &Bound<'_, PyAny>, uid: u64, first_seq: &Bound<'_, PyAny>,
        due: Option<&Bound<'_, PyAny>>, duplicate: Option<&Bound<'_, PyAny>>, queue: u32,
    ) -> PyResult<()> {
        let rows = StoredRows {
            token: array(token)?,
            count: array(count)?,
            queue,
            uid,
            first_seq: array(first_seq)?,
            due: due.map_or(Ok(Vec::new()), array)?,
            duplicate: duplicate.map_or(Ok(Vec::new()), array)?,
        };
        if let Some(misfit) = rows.misfit() {
            return Err(PyValueError::new_err(misfit));
        }
        self.server.answer_rows(rows);
        Ok(())
    }

    fn answer_row(&self, token: u64, body: &[u8]) {
        self.server.answer_row(token, body);
    }

    #[pyo3(signature = (token, code, message, details=NONE, error=NONE))]
    fn refuse_row(&self, token: u64, code: u32, message: String, details: &[u8], error: &[u8]) {
        self.server.refuse_row(token, status(code, message, details), error);
    }

    fn answer_single(&self, token: u64, status: &[u8]) {
        self.server.answer_single(token, status);
    }

    fn as_calls(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        self.server.as_calls(&array(token)?);
        Ok(())
    }

    #[pyo3(signature = (token, body, *, tell=false))]
    fn respond(&self, token: u64, body: &[u8], tell: bool) -> bool {
        self.server.respond(token, body, tell)
    }

    fn write(&self, token: u64, body: &[u8]) -> bool {
        self.server.write(token, body)
    }

    fn write_last(&self, token: u64, bodies: Vec<PyBackedBytes>) {
        let mut framed = Vec::with_capacity(bodies.iter().map(|body| 5 + body.len()).sum());
        for body in &bodies {
            framed.extend_from_slice(&encode::prefix(body.len()));
            framed.extend_from_slice(body);
        }
        self.server.write_last(token, framed.into());
    }

    fn more(&self, token: u64) {
        self.server.more(token);
    }

    #[pyo3(signature = (token, code=0, message=String::new(), details=NONE))]
    fn end(&self, token: u64, code: u32, message: String, details: &[u8]) {
        self.server.end(token, status(code, message, details));
    }

    #[pyo3(signature = (on, *, calls=true))]
    fn pause_reading(&self, on: bool, calls: bool) {
        self.server.pause_reading(on, calls);
    }

    fn drain(&self, seconds: f64) -> PyResult<()> {
        let within = Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.server.drain(within);
        Ok(())
    }

    fn cut(&self, peers: &Bound<'_, PyAny>) -> PyResult<usize> {
        let peers = peers.try_iter()?.map(|peer| peer?.extract()).collect::<PyResult<HashSet<String>>>()?;
        Ok(self.server.cut(&peers))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.server.close());
    }

    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = &self.server.core;
        let counted = &core.figures;
        let figures = PyDict::new(py);
        figures.set_item("connections", core.connections())?;
        figures.set_item("calls", core.calls.load(Relaxed))?;
        figures.set_item("rows", core.rows.len())?;
        figures.set_item("rows_bytes", core.rows_budget.used())?;
        figures.set_item("calls_bytes", core.calls_budget.used())?;
        figures.set_item("unread_bytes", core.unread.used())?;
        figures.set_item("waiting", core.rows_budget.waiting() + core.calls_budget.waiting())?;
        figures.set_item("connections_taken", counted.connections_taken.get())?;
        figures.set_item("connections_refused", counted.connections_refused.get())?;
        figures.set_item("connections_cut", counted.connections_cut.get())?;
        figures.set_item("handshakes_failed", counted.handshakes_failed.get())?;
        figures.set_item("requests_taken", counted.requests_taken.get())?;
        figures.set_item("calls_begun", counted.calls_begun.get())?;
        figures.set_item("calls_refused", counted.calls_refused.get())?;
        figures.set_item("answers_refused", core.unread.refused())?;
        figures.set_item("resets", counted.resets.get())?;
        figures.set_item("panics", counted.panics.get())?;
        figures.set_item("cpu_seconds", core.threads.seconds())?;
        Ok(figures)
    }
}

#[pyclass(frozen, module = "delayedge", name = "Writes")]
struct PyWrites {
    writes: Writes,
}

#[pymethods]
impl PyWrites {
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        Ok(PyWrites { writes: Writes::new(threads)? })
    }

    fn fileno(&self) -> c_int {
        self.writes.fileno()
    }

    fn submit(&self, token: u64, descriptor: c_int, data: &[u8]) {
        self.writes.submit(token, descriptor, data.to_vec());
    }

    fn take(&self) -> Vec<(u64, i32, i32, f64)> {
        let taken = self.writes.take().into_iter();
        taken.map(|one| (one.token, one.write_error, one.sync_error, one.seconds)).collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.writes.close());
    }
}

/// What a contiguous buffer holds. SAFETY: nobody changes it while it is in use: its owner's word.
fn items_of<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&[T]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the bytes don't lie one after the other"));
    }
    if buffer.item_count() == 0 {
        return Ok(&[]); // its pointer may be anything
    }
    // SAFETY: so many are there, aligned, as long as the buffer is held.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.item_count()) })
}

#[pyfunction]
fn record_sum(record: PyBuffer<u8>, offset: u64) -> PyResult<u64> {
    Ok(checks::record_sum(items_of(&record)?, offset))
}

#[pyfunction]
fn record_sums<'py>(
    py: Python<'py>, records: PyBuffer<u8>, begin: PyBuffer<i64>, offset: PyBuffer<i64>, size: PyBuffer<i64>,
) -> PyResult<Bound<'py, PyByteArray>> {
    let (bytes, begin, offset, size) = (items_of(&records)?, items_of(&begin)?, items_of(&offset)?, items_of(&size)?);
    let sums = py.detach(|| checks::record_sums(bytes, begin, offset, size));
    let sums = sums
        .ok_or_else(|| PyValueError::new_err("a record lies outside of the bytes, or the columns differ in length"))?;
    Ok(PyByteArray::new(py, as_bytes(&sums)))
}

#[pyfunction]
fn unit_sums<'py>(py: Python<'py>, units: PyBuffer<u8>, factors: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
    let units = items_of(&units)?;
    let sums = py.detach(|| checks::unit_sums(units, factors));
    Ok(PyByteArray::new(py, as_bytes(&sums)))
}

fn as_bytes(numbers: &[u64]) -> &[u8] {
    // SAFETY: numbers are bytes.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

#[pyfunction]
fn unit_sum(unit: &[u8], factors: &[u8]) -> u64 {
    checks::unit_sum(unit, factors)
}

#[pymodule]
fn delayedge(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Edge>()?;
    module.add_class::<PyRows>()?;
    module.add_class::<PyEvent>()?;
    module.add_class::<Buffer>()?;
    module.add_class::<PyWrites>()?;
    module.add_function(wrap_pyfunction!(record_sum, module)?)?;
    module.add_function(wrap_pyfunction!(unit_sum, module)?)?;
    module.add_function(wrap_pyfunction!(record_sums, module)?)?;
    module.add_function(wrap_pyfunction!(unit_sums, module)?)?;
    Ok(())
}
