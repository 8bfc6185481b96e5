// Gathers every kernel of the instruction set MH_ISA into a table.
#pragma once

#include "kernels/conv.h"
#include "kernels/conv_by_lists.h"
#include "kernels/conv_staging.h"
#include "kernels/elementwise.h"
#include "kernels/flat.h"
#include "kernels/kernel_table.h"
#include "kernels/linear_backward.h"
#include "kernels/linear_forward.h"
#include "kernels/pool.h"
#include "sparse/active_losses.h"
#include "sparse/active_products.h"
#include "sparse/active_update.h"
#include "sparse/feature_rows.h"
#include "sparse/hash_kernels.h"
#include "sparse/single_rows.h"
#include "kernels/update.h"
#include "kernels/winograd.h"
#include "wire/codec_kernels.h"

namespace mh::MH_ISA {

// Evaluated by the compiler: code in this file must not run before the machine was asked about it.
constexpr KernelTable make_table(const char* name) {
  KernelTable table{};
  table.name = name;
  table.lanes = kLanes;
  table.update = &update;
  table.squared_norm = &squared_norm;
  table.average = &average;
  table.relu = &relu;
  table.tanh = &tanh;
  table.sigmoid = &sigmoid;
  table.relu_grad = &relu_grad;
  table.tanh_grad = &tanh_grad;
  table.sigmoid_grad = &sigmoid_grad;
  table.exponentials = &exponentials;
  table.add_and_clear = &add_and_clear;
  table.take = &take;
  table.difference = &difference;
  table.merge = &merge;
  table.to_bfloat16 = &to_bfloat16;
  table.from_bfloat16 = &from_bfloat16;
  table.to_int8 = &to_int8;
  table.from_int8 = &from_int8;
  table.all_finite = &all_finite;
  table.all_finite_bfloat16 = &all_finite_bfloat16;
  table.linear_forward = &linear_forward;
  table.linear_backward = &linear_backward;
  table.pack_panels = &pack_panels;
  table.unpack_panels = &unpack_panels;
  table.column_sums = &column_sums;
  table.conv_forward = &conv_forward;
  table.conv_weight_grad = &conv_weight_grad;
  table.conv_bias_grad = &conv_bias_grad;
  table.conv_input_grad = &conv_input_grad;
  table.spread_pixels = &spread_pixels;
  table.pad = &pad;
  table.unpad = &unpad;
  table.gather_windows = &gather_windows;
  table.scatter_windows = &scatter_windows;
  table.winograd_weights = &winograd_weights;
  table.winograd_forward = &winograd_forward;
  table.winograd_weight_grad = &winograd_weight_grad;
  table.winograd_gradient = &winograd_gradient;
  table.list_pixels = &list_pixels;
  table.listed_weight_grad = &listed_weight_grad;
  table.listed_input_grad = &listed_input_grad;
  table.max_pool_2x2 = &max_pool_2x2;
  table.max_pool_2x2_grad = &max_pool_2x2_grad;
  table.lay_block = &lay_block;
  table.keep_largest = &keep_largest;
  table.hash_winners = &hash_winners;
  table.hash_signs = &hash_signs;
  table.join_digits = &join_digits;
  table.active_columns = &active_columns;
  table.active_logits = &active_logits;
  table.active_exponentials = &active_exponentials;
  table.active_sigmoids = &active_sigmoids;
  table.active_scaled = &active_scaled;
  table.active_input_grad = &active_input_grad;
  table.active_update = &active_update;
  table.scale_rows = &scale_rows;
  table.feature_forward = &feature_forward;
  table.feature_update = &feature_update;
  table.row_dots = &row_dots;
  table.row_steps = &row_steps;
  return table;
}

}  // namespace mh::MH_ISA
