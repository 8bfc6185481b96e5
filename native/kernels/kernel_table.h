// The kernels of one instruction set, as function pointers that know nothing of it.
//
// Arguments that belong together travel as one struct. Activations are rows [batch][ld] of one
// sample each; an image is its planes one after another (NCHW). Buffers that kernels may read or
// write beyond a row's end (up to kSlack floats, without meaning) are named so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/rule_step.h"
#include "sparse/active_batch.h"
#include "sparse/hash_layout.h"

namespace mh {

using Index = std::ptrdiff_t;

// Floats behind each row of an activation buffer that a kernel may touch: two of the widest
// vectors.
constexpr Index kSlack = 32;

// From this batch size on a linear layer's passes go by lists of what is not zero.
constexpr Index kWideBatch = 17;

// Floats that a linear layer's passes need for vectors of any width: scratch of the forward and of
// the backward pass, and panels of activations (see pack_panels).
constexpr Index linear_forward_scratch(Index batch, Index in) {
  return batch < kWideBatch ? 0 : (batch + kSlack) * (2 * in + 256);
}
constexpr Index linear_backward_scratch(Index batch) { return 200 * (batch + 48); }
constexpr Index panel_floats(Index batch, Index width) { return (batch + 1) * (width + 96); }

struct LinearForward {
  Index batch, in, out;
  const float* x;
  Index ldx;
  const float* weight;  // [out][in]
  const float* bias;    // or null
  float* y;
  Index ldy;
  bool relu;
  float* scratch;  // linear_forward_scratch
};

struct LinearBackward {
  Index batch, in, out;
  const float* dy;
  Index lddy;
  float* scratch;         // linear_backward_scratch
  const float* x_panels;  // see pack_panels
  float* dx_panels;       // or null: not wanted
  float* weight;
  float *state0, *state1;
  bool train;            // false: the weight is frozen
  float* grad;           // not null: the gradient goes here and the weight stays
  const RuleStep* step;  // the rule to apply when grad is null
};

// Up to a vector of neighbouring output pixels, all in one row of the image.
struct PixelVector {
  Index in;     // where the window of the first pixel begins in a staged plane
  Index out;    // the first pixel in an output plane
  Index lanes;  // how many pixels
};

// A convolution seen as a product: output[o][pixel] = sum over k of w[o][k] * input[tap[k] +
// pixel].
struct ConvShape {
  Index in_channels, out_channels, area;  // area: kernel height * width
  Index depth;                            // in_channels * area
  Index vectors;
  const PixelVector* pixels;
  const Index* taps;   // [depth], offsets into a staged input
  Index staged_plane;  // floats from one channel of a staged input to the next
  Index out_plane;     // floats of an output plane
};

// Images one after another, `stride` floats apart.
struct Images {
  Index count;
  float* data;
  Index stride;
};

// Pads each plane with zeros, and takes the padding away again.
struct Padding {
  Index planes, height, width;  // without padding
  Index above, left;
  Index padded_height, padded_width;
};

// Lays the windows of one (padded) image out as a matrix [depth][row], pixels contiguous.
struct Windows {
  Index channels, plane;  // plane: floats of a (padded) plane
  Index width;            // floats of its rows
  Index kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x;
  Index out_height, out_width, row;  // row: floats per matrix row, >= out_height * out_width
};

// A convolution with 3 x 3 taps and stride 1, in tiles of 4 x 4 outputs (winograd.h).
struct Winograd {
  Index in_channels, out_channels;  // at least a vector each
  Index height, width, above, left;  // of the image, and its padding
  Index out_height, out_width;
  Index tiles_down, tiles_across;
};

// Floats of its matrices, for vectors of any width. Rows and matrices are an odd number of cache
// lines apart: else they would share a few places of the cache.
constexpr Index odd_lines(Index floats) { return ((floats + 15) / 16 | 1) * 16; }
constexpr Index winograd_row(Index channels) { return odd_lines((channels + 31) / 32 * 32); }
constexpr Index winograd_slab(Index rows, Index channels) {
  return odd_lines(rows * winograd_row(channels));
}
constexpr Index winograd_weight_slab(Index in, Index out) {
  return odd_lines(in * ((out + 31) / 32 * 32));
}
constexpr Index winograd_strip(Index tiles_across) { return (24 * tiles_across + 28) * 16; }

// A convolution seen from the numbers of its output's gradient that are not zero. Turned images
// [image][padded height][padded width][lanes] and turned weights [out][kernel height][kernel
// width][lanes] hold a block of channels, as many as a vector has lanes.
struct ListedConv {
  Index in_channels, in_height, in_width;
  Index out_channels, out_height, out_width;
  Index kernel_height, kernel_width;  // width: 3 or 5
  Index above, left;                  // padding
  // In floats of a turned image, but for its width:
  Index turned_width, turned_image;  // pixels of a padded row; a whole image
  Index window_down, window_right;   // from one window to the next
  Index tap_row;                     // from one row of taps to the next
  Index turned_weights;              // floats of a block
};

// The numbers that are not zero, with slack, and where their windows begin in the turned images;
// those of output o end where those of o + 1 begin.
struct PixelLists {
  float* values;
  std::uint32_t* windows;
  Index* ends;
};

struct Pool {
  Index planes, height, width, out_height, out_width;
  Index kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
};

struct KernelTable {
  const char* name;
  int lanes;

  // --- flat walks (update.h, elementwise.h)
  // state0 and state1 may be null when the rule keeps fewer states.
  void (*update)(const RuleStep& step, Index n, float* weight, const float* grad, float* state0,
                 float* state1);
  double (*squared_norm)(Index n, const float* x);
  void (*average)(Index n, float* averaged, const float* weight, float share);
  void (*relu)(Index n, const float* x, float* y);
  void (*tanh)(Index n, const float* x, float* y);
  void (*sigmoid)(Index n, const float* x, float* y);
  // dx may be dy.
  void (*relu_grad)(Index n, const float* y, const float* dy, float* dx);
  void (*tanh_grad)(Index n, const float* y, const float* dy, float* dx);
  void (*sigmoid_grad)(Index n, const float* y, const float* dy, float* dx);
  // y = exp(x - max x); returns the sum of y and stores the maximum.
  double (*exponentials)(Index n, const float* x, float* y, float* maximum);

  // --- flat walks between workers and servers (flat.h)
  void (*add_and_clear)(Index n, float* accumulated, float* outgoing);
  void (*take)(Index n, float* outgoing, float* staged);
  void (*difference)(Index n, const float* base, const float* local, float* out);
  void (*merge)(Index n, float* local, float* base, const float* sent, const float* pulled);

  // --- encodings (wire/codec_kernels.h); encoded values may lie at any address
  void (*to_bfloat16)(Index n, const float* x, std::uint8_t* encoded);
  void (*from_bfloat16)(Index n, const std::uint8_t* encoded, float* x);
  float (*to_int8)(Index n, const float* x, std::uint8_t* encoded);  // one block; its scale
  void (*from_int8)(Index n, float scale, const std::uint8_t* encoded, float* x);
  bool (*all_finite)(Index n, const std::uint8_t* floats);
  bool (*all_finite_bfloat16)(Index n, const std::uint8_t* encoded);

  // --- linear layers (linear_forward.h, linear_backward.h)
  void (*linear_forward)(const LinearForward& p);
  void (*linear_backward)(const LinearBackward& p);
  // panels: panel_floats
  void (*pack_panels)(Index batch, Index width, const float* x, Index ldx, float* panels);
  void (*unpack_panels)(Index batch, Index width, const float* panels, float* x, Index ldx);
  void (*column_sums)(Index batch, Index width, const float* dy, Index lddy, float* sums);

  // --- convolutions (conv.h, conv_staging.h); staged inputs have slack
  void (*conv_forward)(const ConvShape& s, const float* staged, const float* weight,
                       const float* bias, float* y, bool relu);
  // dy in vectors: [image][channel][vectors * lanes], lanes without a pixel zero. Adds to grad.
  void (*conv_weight_grad)(const ConvShape& s, const Images& staged, const Images& dy, float* grad);
  void (*conv_bias_grad)(Index channels, Index plane, const Images& dy, float* grad);
  // tap_weights: [area][out][in]. Adds to the staged gradient.
  void (*conv_input_grad)(const ConvShape& s, const float* dy, const float* tap_weights,
                          float* staged_grad);
  void (*spread_pixels)(const ConvShape& s, const float* dy, float* vectors);
  void (*pad)(const Padding& p, const float* x, float* padded);
  void (*unpad)(const Padding& p, const float* padded, float* x);
  void (*gather_windows)(const Windows& w, const float* x, float* matrix);
  void (*scatter_windows)(const Windows& w, const float* matrix, float* x);

  // --- convolutions by tiles (winograd.h); images have slack
  void (*winograd_weights)(const Winograd& s, const float* weight, Index out_step, Index in_step,
                           bool backwards, float* mapped);
  void (*winograd_forward)(const Winograd& s, const Images& x, const float* weights,
                           const float* bias, bool relu, float* scratch, const Images& y);
  void (*winograd_weight_grad)(const Winograd& s, const Images& x, const Images& dy, bool add,
                               float* scratch, float* sums);
  void (*winograd_gradient)(const Winograd& s, const float* sums, float* grad);

  // --- convolutions by lists (conv_by_lists.h); `turned` holds one block of as many images as
  // there are, its border zero, with slack of a vector of vectors.
  void (*list_pixels)(const ListedConv& p, const Images& dy, const PixelLists& lists);
  // grad: turned, all blocks. Adds to it.
  void (*listed_weight_grad)(const ListedConv& p, const PixelLists& lists, const Images& x,
                             float* turned, float* grad);
  // weight: turned, all blocks
  void (*listed_input_grad)(const ListedConv& p, const PixelLists& lists, const float* weight,
                            float* turned, const Images& dx);

  // --- pooling (pool.h); all images have slack. `chosen` is 0 to 3, reading order.
  void (*max_pool_2x2)(const Pool& p, const float* x, float* y, std::uint8_t* chosen, bool relu);
  // y null: no ReLU behind the pool
  void (*max_pool_2x2_grad)(const Pool& p, const float* y, const float* dy,
                            const std::uint8_t* chosen, float* dx);

  // --- hashing rows (sparse/hash_kernels.h); blocks are [width][kHashBlock], digits
  // [hashes of all tables][kHashBlock], codes [tables][kHashBlock]. Lanes from `count` on are
  // without meaning.
  void (*lay_block)(Index width, const float* const* rows, int count, HashEntries entries,
                    float* block);
  void (*keep_largest)(Index width, Index most, int count, float* block);
  void (*hash_winners)(const HashBins& p, const float* block, int count, std::uint8_t* digits);
  void (*hash_signs)(const HashProjections& p, const float* block, int count,
                     std::uint8_t* digits);
  void (*join_digits)(const HashDigits& p, const std::uint8_t* digits, std::uint16_t* codes);

  // --- wide layers, the whole batch against its active rows (sparse/active_*.h)
  void (*active_columns)(const ActiveBatch& p, Index panel);
  void (*active_logits)(const ActiveBatch& p, Index first, Index count);
  void (*active_exponentials)(const ActiveBatch& p, Index panel, float* tops, float* sums);
  void (*active_sigmoids)(const ActiveBatch& p, Index panel, double* losses);
  void (*active_scaled)(const ActiveBatch& p, Index panel);
  void (*active_input_grad)(const ActiveBatch& p, Index first, Index pairs);
  void (*active_update)(const ActiveBatch& p, const RuleStep& step, Index first, Index count);
  void (*scale_rows)(const RowArrays& arrays, const std::int32_t* rows, Index count,
                     const float* factors);
  // --- sparse input (sparse/feature_rows.h)
  void (*feature_forward)(const RowArrays& rows, const float* bias, const SparseRows& x,
                          Index count, Index total, float* y, Index ldy);
  void (*feature_update)(const RowArrays& rows, const RuleStep& step, const FeatureGroups& groups,
                         Index first, Index count, const float* dh, Index ld, float* grads);
  // --- one sample against rows of its own (sparse/single_rows.h)
  void (*row_dots)(const RowArrays& weight, const float* bias, const std::int32_t* rows,
                   Index count, const float* x, float* out);
  void (*row_steps)(const RowArrays& weight, const RowArrays& bias, const RuleStep& step,
                    const std::int32_t* rows, Index count, const float* grads, const float* x,
                    float* dx);
};

}  // namespace mh
