//! TLS and SASL of a broker that requires them.

use std::env;
use std::sync::Arc;

use rskafka::client::{ClientBuilder, Credentials, OauthBearerCredentials, SaslConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::Outcome;

/// Apply the settings of the environment's COMPAT_SECURITY, if there are any.
pub fn secured(builder: ClientBuilder) -> Outcome<ClientBuilder> {
    let given = env::var("COMPAT_SECURITY").unwrap_or_default();
    if given.is_empty() {
        return Ok(builder);
    }
    let settings: Value = serde_json::from_str(&given)?;
    let text = |name: &str| settings[name].as_str().unwrap_or_default().to_owned();
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(text("trusted"))? {
        authorities.add(certificate?)?;
    }
    let tls = ClientConfig::builder().with_root_certificates(authorities).with_no_client_auth();
    let user = Credentials::new(text("user"), text("secret"));
    let sasl = match text("mechanism").as_str() {
        "PLAIN" => SaslConfig::Plain(user),
        "SCRAM-SHA-256" => SaslConfig::ScramSha256(user),
        "SCRAM-SHA-512" => SaslConfig::ScramSha512(user),
        "OAUTHBEARER" => SaslConfig::Oauthbearer(bearer(text("secret"))),
        other => return Err(format!("no SASL mechanism of rskafka: {other}").into()),
    };
    Ok(builder.tls_config(Arc::new(tls)).sasl_config(sasl))
}

fn bearer(token: String) -> OauthBearerCredentials {
    let callback = Arc::new(move || {
        let token = token.clone();
        let future: futures::future::BoxFuture<_> = Box::pin(async move { Ok(token) });
        future
    });
    OauthBearerCredentials { callback, authz_id: None, bearer_kvs: Vec::new() }
}
