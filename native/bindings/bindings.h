// The parts of the Python module that module.cpp puts together.
#pragma once

#include <nanobind/nanobind.h>

namespace mh {

void bind_row_products(nanobind::module_& m);
void bind_sparse_trainer(nanobind::module_& m);
void bind_updates(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_client(nanobind::module_& m);
void bind_server(nanobind::module_& m);
void bind_codec(nanobind::module_& m);
void bind_flat(nanobind::module_& m);
void bind_checksum(nanobind::module_& m);
void bind_lsh(nanobind::module_& m);
void bind_label_lines(nanobind::module_& m);
void bind_shared_mapping(nanobind::module_& m);

}  // namespace mh
