//! OpenAPI schemas of values that have several forms.

use std::borrow::Cow;
use std::marker::PhantomData;

use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// Returns the schema of a value that has one of these forms.
pub fn one_of(forms: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    forms.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
}

pub fn list_of(item: RefOr<Schema>) -> RefOr<Schema> {
    ArrayBuilder::new().items(item).into()
}

/// Returns a reference to a named type. The document must contain the type (see [`add`]).
pub fn named<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

/// The named types of a document.
pub type Schemas = Vec<(String, RefOr<Schema>)>;

/// Adds a type, and the types that it refers to, to a document.
pub fn add<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// A type for the OpenAPI document whose values are of one of two types.
pub struct Either<A, B>(PhantomData<(A, B)>);

impl<A: ToSchema, B: ToSchema> PartialSchema for Either<A, B> {
    fn schema() -> RefOr<Schema> {
        one_of([named::<A>(), named::<B>()])
    }
}

impl<A: ToSchema, B: ToSchema> ToSchema for Either<A, B> {
    fn name() -> Cow<'static, str> {
        format!("{}Or{}", A::name(), B::name()).into()
    }

    fn schemas(schemas: &mut Schemas) {
        add::<A>(schemas);
        add::<B>(schemas);
    }
}
