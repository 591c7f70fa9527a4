#include "device_kernels/initialize.h"

#include <type_traits>

#include "device_kernels/halves.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

// A warp checks 32 rows and is done if none of them is new, which is the usual case. The pieces of
// new rows, four columns or 16 bytes of state each, are distributed to its lanes.
template <class T>
struct Initializes {
  static constexpr unsigned block_threads = kBlockThreads;
  Initialize a;
  uint32_t num_blocks;        // pieces of four columns per row
  uint32_t pieces_of_row;     // the same, plus the pieces of its state

  SPARRING_DEVICE void operator()(const Block& block) const {
    const Warp warp = block.warp();
    const auto count = static_cast<uint64_t>(a.count);
    for (uint64_t first = block.warp_in_grid() * device::warp_lanes; first < count;
         first += block.grid_warps() * device::warp_lanes) {
      const uint64_t own = first + warp.lane();
      const uint32_t made = warp.ballot(own < count && (a.flags[own] != 0) == a.writes_flagged);
      const uint32_t num_pieces = device::num_ones(made) * pieces_of_row;
      for (uint32_t at = warp.lane(); at < num_pieces; at += device::warp_lanes) {
        const uint64_t i = first + device::nth_one(made, at / pieces_of_row);
        const uint32_t piece = at % pieces_of_row;
        char* const row = a.rows.at(i);
        if (piece < num_blocks) {
          make_columns(
              row, a.keys[a.positions != nullptr ? a.positions[i] : static_cast<int64_t>(i)], piece);
        } else {
          make_state(row, static_cast<int64_t>(piece - num_blocks));
        }
      }
    }
  }
  SPARRING_DEVICE void make_columns(char* row, int64_t key, uint64_t piece) const {
    const InitialColumns<T> columns =
        initial_columns<T>(a.values, key, static_cast<uint32_t>(piece));
    T* const to = reinterpret_cast<T*>(row) + 4 * piece;
    const uint64_t left = static_cast<uint64_t>(a.layout.dim) - 4 * piece;
    for (uint64_t k = 0; k < 4 && k < left; ++k) to[k] = columns.values[k];
  }
  // Piece 0 is the gap, which is zeroed so that equal rows have equal bytes. Each other piece is 4
  // elements of state.
  SPARRING_DEVICE void make_state(char* row, int64_t piece) const {
    using State = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (piece == 0) {
      for (int64_t at = a.layout.dim * static_cast<int64_t>(sizeof(T)); at < a.layout.state_begin;
           ++at)
        row[at] = 0;
      return;
    }
    State* const to = reinterpret_cast<State*>(row + a.layout.state_begin);
    const int64_t first = 4 * (piece - 1);
    for (int64_t k = first; k < first + 4 && k < a.layout.state_width; ++k)
      to[k] = a.state != nullptr ? static_cast<const State*>(a.state)[k] : State{0};
  }
};

}  // namespace

InitialValues prepare(const Initializer& initializer, RowType type) {
  return with_row_type(type, [&]<class T>(T) { return initial_values<T>(initializer); });
}

void initialize(Device& device, Stream stream, const Initialize& arguments) {
  if (arguments.count == 0) return;
  const RowLayout& layout = arguments.layout;
  const auto num_blocks = static_cast<uint32_t>((layout.dim + 3) / 4);
  const uint32_t pieces =
      num_blocks + (layout.state_width == 0
                        ? 0
                        : 1 + static_cast<uint32_t>((layout.state_width + 3) / 4));
  const device::Shape grid = grid_for(device, static_cast<uint64_t>(arguments.count));
  with_row_type(layout.type, [&]<class T>(T) {
    launch(device, grid, stream, Initializes<T>{arguments, num_blocks, pieces});
  });
}

}  // namespace sparring::device_kernels
