use trunkline_api::respond::ErrorForm;
use trunkline_api::tgi::ErrorResponse;
use trunkline_base::error::ApiError;
use trunkline_base::request_id::RequestId;
use trunkline_text::TextError;

#[test]
fn errors_have_tgis_kinds_and_statuses() {
    for (error, kind, expected) in [
        (ApiError::value("top_p", "is 7"), "validation", 422),
        (ApiError::BodyBroken, "validation", 400),
        (ApiError::Text(TextError::NoChatTemplate), "template_error", 422),
        (ApiError::ShardLost, "generation", 424),
        (ApiError::SequenceFailed { detail: "x".into() }, "generation", 424),
        (ApiError::TooManyBodies, "overloaded", 429),
        (ApiError::Draining, "unhealthy", 503),
        (ApiError::Bug { request_id: RequestId::random() }, "internal", 500),
    ] {
        assert_eq!(ErrorResponse::from_error(&error).error_type, kind, "{error}");
        assert_eq!(ErrorResponse::status(&error).as_u16(), expected, "{error}");
    }
}
