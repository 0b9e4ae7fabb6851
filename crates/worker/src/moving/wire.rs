//! A move's messages, to and from what they say.

use hawser_proto::v1;
use v1::import_session_request::Step as Ask;
use v1::import_session_response::Step as Answer;

use super::snapshot::{Chunk, Offer};

pub(super) fn ask(step: Ask) -> v1::ImportSessionRequest {
    v1::ImportSessionRequest { step: Some(step) }
}

pub(super) fn answer(step: Answer) -> v1::ImportSessionResponse {
    v1::ImportSessionResponse { step: Some(step) }
}

pub(super) fn offer_to_wire(session: v1::SessionKey, offer: &Offer) -> v1::ImportOffer {
    let [layers, heads, kv_heads, head_dim] = offer.sizes;
    v1::ImportOffer {
        session: Some(session),
        version: offer.version,
        model_digest: offer.digest.clone(),
        kv_type: offer.kv_type.clone(),
        layers,
        heads,
        kv_heads,
        head_dim,
        manifest_bytes: offer.manifest_bytes,
        rows: offer.rows,
        row_bytes: offer.row_bytes,
    }
}

pub(super) fn offer_of(wire: v1::ImportOffer) -> Offer {
    Offer {
        version: wire.version,
        digest: wire.model_digest,
        kv_type: wire.kv_type,
        sizes: [wire.layers, wire.heads, wire.kv_heads, wire.head_dim],
        manifest_bytes: wire.manifest_bytes,
        rows: wire.rows,
        row_bytes: wire.row_bytes,
    }
}

pub(super) fn chunk_to_wire(chunk: Chunk) -> v1::ImportChunk {
    let Chunk { offset, data, checksum } = chunk;
    v1::ImportChunk { offset, data, checksum }
}

pub(super) fn chunk_of(wire: v1::ImportChunk) -> Chunk {
    let v1::ImportChunk { offset, data, checksum } = wire;
    Chunk { offset, data, checksum }
}
