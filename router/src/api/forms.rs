//! How the OpenAPI document describes what takes one of several forms.

use std::borrow::Cow;
use std::marker::PhantomData;

use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// One of these forms.
pub fn one_of(forms: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    forms.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
}

/// A list of it.
pub fn list_of(item: RefOr<Schema>) -> RefOr<Schema> {
    ArrayBuilder::new().items(item).into()
}

/// A named type, by its name.
pub fn named<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

/// Types that a document needs for the names in it.
pub type Schemas = Vec<(String, RefOr<Schema>)>;

/// What `named` needs in the document.
pub fn add<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// Stands in the document for what is either of two types.
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
