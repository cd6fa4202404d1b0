// SavedState: the tensors of a checkpoint, in whatever pieces the ranks saved them, for ranks that
// may be others and cut otherwise. A piece's name says which elements of its tensor it holds:
// "wte.weight[0:4096].exp_avg"; without a range it is the whole. Any piece may be read from any
// others that cover it, so the number of ranks, the ZeRO stage and the bucket size may change over
// a resume. Only residuals and momenta that are sent belong to a rank (dist/data_parallel.h): they
// are summed. Read next: saved_state.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "examples/checkpoint.h"
#include "examples/safetensors.h"

namespace lockstep {

// The file in which a rank saves its part, as "rank-000.safetensors".
std::string state_file(int rank);

// What a rank saves of Replica::state(): rank 0 all of it, the others what they alone have, which
// is what has a range. No file if that is nothing.
std::vector<CheckpointFile> state_files(int rank, const std::vector<NamedTensor>& state);

// All errors are Exit::data and name the checkpoint, the tensor, and the elements or file.
class SavedState {
 public:
  explicit SavedState(const Checkpoint& checkpoint);
  // Of one file that has all, as `trainer export` writes it.
  explicit SavedState(const std::string& file);

  // Fills `wanted`, a whole tensor or a range of one, from the pieces that overlap it: copies of
  // the same element type, without a gap.
  void read(const NamedTensor& wanted) const;

  // Fills all of a replica's state. What belongs to a rank is, on one of `ranks` ranks, the sum of
  // those of the saved ranks r with r % ranks == rank: with as many ranks as before its own, bit
  // for bit. Where none was saved it is zero.
  void restore(const std::vector<NamedTensor>& state, int rank, int ranks) const;

  // What restore() does to residuals that is no copy: a line each for the log.
  std::vector<std::string> residual_notes(const std::vector<NamedTensor>& state, int ranks) const;

  bool contains(const std::string& name) const { return pieces_.contains({name, 0}); }
  // That the saved tensor of this name has this shape, as far as its pieces tell. The elements of
  // `whole` need not be there.
  void check_shape(const NamedTensor& whole) const;
  // That of every parameter, and that no other one was saved: what is left over of a larger model
  // would be lost without a word.
  void check_parameters(const std::vector<NamedTensor>& all) const;

 private:
  struct Piece {
    int64_t begin, end;
    bool whole;
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
  };
  // A tensor's name without range, and the rank that it belongs to; 0 where it belongs to all.
  using Key = std::pair<std::string, int>;

  void add_file(const std::string& path, int rank);
  template <class Visit>
  void visit_pieces(const Key& key, int64_t begin, int64_t end, DType dtype,
                    const Visit& visit) const;
  void read_sum(const NamedTensor& wanted, int rank, int ranks) const;
  const std::vector<Piece>& pieces_of(const Key& key) const;
  std::string file_name(const Piece& piece) const;

  std::string path_;
  int ranks_;  // that saved it
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<Key, std::vector<Piece>> pieces_;  // by their begin
};

// Exit::data if a weight read from `where` is no number.
void check_finite(const NamedTensor& weight, const std::string& where);

}  // namespace lockstep
