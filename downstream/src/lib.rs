//! Measures percale as its users build it: with the default release profile, which has no link-time optimization and 16
//! codegen units. The operations are those of crates/percale/benches; `cargo xtask budget` runs both builds.
