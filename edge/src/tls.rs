//! TLS 1.3 of a listener: its certificates, which are swapped as one, and a client's.
//!
//! Sessions are not resumed: a client that is not trusted any more would come in by its ticket.

use std::sync::{Arc, Mutex};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::limits::Limits;
use crate::lock::lock;

const HTTP2: &[u8] = b"h2";
/// Of what is encrypted and not sent.
const SEND_BYTES: usize = 32 << 10;
/// What TLS may hold of a connection: that, a record that comes, a decrypted one, and a handshake's messages.
pub const CONNECTION_BYTES: u64 = 96 << 10;

pub struct Tls {
    config: Mutex<Option<Arc<ServerConfig>>>,
    /// Places for handshakes.
    pub handshakes: Arc<Semaphore>,
    /// With fewer places left they are crowded.
    crowd: usize,
}

impl Tls {
    /// Without certificates: handshakes fail until there are some.
    pub fn new(limits: &Limits) -> Self {
        let most = usize::try_from(limits.max_handshakes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Tls { config: Mutex::default(), handshakes: Arc::new(Semaphore::new(most)), crowd: most / 2 }
    }

    /// How long a handshake that begins now may take: those that never end are to keep nobody out.
    pub fn handshake_ms(&self, limits: &Limits) -> u64 {
        if self.handshakes.available_permits() < self.crowd { limits.crowded_ms } else { limits.handshake_ms }
    }

    /// For all handshakes from now on.
    pub fn set(&self, config: Arc<ServerConfig>) {
        *lock(&self.config) = Some(config);
    }

    /// Raises what a log should say of it. The connection speaks HTTP/2 then.
    pub async fn accept<T: AsyncRead + AsyncWrite + Unpin>(&self, socket: T) -> Result<TlsStream<T>, String> {
        let config = lock(&self.config).clone().ok_or("the listener has no certificate that can be used")?;
        let accepting =
            TlsAcceptor::from(config).accept_with(socket, |connection| connection.set_buffer_limit(Some(SEND_BYTES)));
        let stream = accepting.await.map_err(|error| error.to_string())?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err("the client does not say by ALPN that it speaks HTTP/2".to_owned());
        }
        Ok(stream)
    }
}

/// PEM: the listener's chain and its key, and who may have issued clients' certificates, which are asked for then.
/// Raises what is wrong with it.
pub fn config(chain: &[u8], key: &[u8], client_roots: Option<&[u8]>) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(default_provider());
    let chain = certificates("the chain", chain)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key can't be read: {error}"))?;
    let verifier = match client_roots {
        None => Arc::new(NoClientAuth),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for root in certificates("the CA of clients", pem)? {
                roots.add(root).map_err(|error| format!("the CA of clients can't be used: {error}"))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| format!("the CA of clients can't be used: {error}"))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_client_cert_verifier(verifier).with_single_cert(chain, key))
        .map_err(|error| format!("the certificate can't be used: {error}"))?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn certificates(of: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{of} has no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{of} can't be read: {error}")),
    }
}

/// A client's verified certificate. Without one both are empty.
#[derive(Default)]
pub struct Shown {
    /// URIs as they are, then DNS names as `dns:NAME`.
    pub names: Vec<String>,
    /// In DER.
    pub certificate: Vec<u8>,
}

pub fn shown(connection: &ServerConnection) -> Shown {
    let Some(certificate) = connection.peer_certificates().and_then(<[_]>::first) else { return Shown::default() };
    let Ok(leaf) = webpki::EndEntityCert::try_from(certificate) else { return Shown::default() };
    let uris = leaf.valid_uri_names().map(str::to_owned);
    let names = uris.chain(leaf.valid_dns_names().map(|name| format!("dns:{name}"))).collect();
    Shown { names, certificate: certificate.to_vec() }
}
