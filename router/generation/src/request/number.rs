//! Checks of single numbers. An error names the field, the value and the limit.

use std::ops::RangeInclusive;

use trunkline_contract::range;

use trunkline_base::error::ApiError;

/// A number that a sampling parameter is made from.
pub trait RequestNumber {
    type Param;

    /// Returns the parameter if the number is in the first range, that of requests. If it is below the second one, the
    /// parameter's own, it stands for the smallest number there.
    fn checked(self, field: &str, ranges: [RangeInclusive<f32>; 2]) -> Result<Self::Param, ApiError>;
}

impl RequestNumber for f64 {
    type Param = f32;

    fn checked(self, field: &str, [request, own]: [RangeInclusive<f32>; 2]) -> Result<f32, ApiError> {
        Ok(bounded(field, self, request)?.max(*own.start()))
    }
}

impl RequestNumber for i64 {
    type Param = u32;

    fn checked(self, field: &str, [request, _]: [RangeInclusive<f32>; 2]) -> Result<u32, ApiError> {
        if self == -1 && request.contains(&-1.0) { Ok(0) } else { count(field, self, i64::from(u32::MAX)) }
    }
}

pub fn count(field: &str, value: i64, max: i64) -> Result<u32, ApiError> {
    if value < 0 {
        return Err(too_small(field, value, 0));
    }
    if value > max {
        return Err(ApiError::value(field, format!("is {value}, the limit is {max}")));
    }
    // The limit is at most u32::MAX.
    Ok(value as u32)
}

pub fn too_small(field: &str, value: i64, min: i64) -> ApiError {
    ApiError::value(field, format!("is {value}, must be at least {min}"))
}

/// Narrows a value to f32 if it is in its range.
pub fn bounded(field: &str, value: f64, range: RangeInclusive<f32>) -> Result<f32, ApiError> {
    let is_above_zero = range::is_above_zero(&range);
    let (low, high) = range.into_inner();
    let is_high_enough = if is_above_zero { value > 0.0 } else { value >= f64::from(low) };
    // NaN is in no range.
    if !(is_high_enough && value <= f64::from(high)) {
        let low_text = if is_above_zero { "greater than 0".to_owned() } else { format!("at least {low}") };
        return Err(ApiError::value(field, format!("is {value}, must be {low_text} and at most {high}")));
    }
    // A tiny value must not become 0 in f32, which is out of range.
    Ok((value as f32).max(low))
}
