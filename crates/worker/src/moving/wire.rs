//! A move's messages, to and from what they say.

use hawser_proto::v1;
use v1::import_session_request::Step as Ask;
use v1::import_session_response::Step as Answer;

use super::rebalance::{Share, Terms};
use super::snapshot::{Chunk, Offer};

pub(super) fn ask(step: Ask) -> v1::ImportSessionRequest {
    v1::ImportSessionRequest { step: Some(step) }
}

pub(super) fn answer(step: Answer) -> v1::ImportSessionResponse {
    v1::ImportSessionResponse { step: Some(step) }
}

pub(super) fn balance_to_wire(terms: &Terms) -> v1::ImportBalance {
    // A number that is none, or beyond its bounds, becomes the nearest one that is: `as` saturates.
    v1::ImportBalance {
        load_ppm: (terms.level * 1e6) as u32,
        rows: terms.share.rows.ceil() as u64,
        calls_milli: (terms.share.calls * 1e3).ceil() as u32,
    }
}

pub(super) fn balance_of(wire: &v1::ImportBalance) -> Terms {
    let share = Share { rows: wire.rows as f64, calls: f64::from(wire.calls_milli) / 1e3 };
    Terms { level: f64::from(wire.load_ppm) / 1e6, share }
}

pub(super) fn offer_to_wire(
    session: v1::SessionKey,
    offer: &Offer,
    terms: Option<&Terms>,
) -> v1::ImportOffer {
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
        balance: terms.map(balance_to_wire),
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
