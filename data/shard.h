// One file of token ids. Two layouts: llm.c's .bin, which is also what Lockstep writes,
//   256 x int32 header: [0] magic, [1] version, [2] number of tokens (unsigned), zeros; then the
//   ids: uint16 for magic 20240520 version 1, uint32 for magic 20240801 version 7; little-endian;
// and nanoGPT's headerless uint16. The layout is never guessed. Positions and byte offsets are
// 64-bit. Ids are checked where they are read, window by window, in the pass that widens them: a
// start-up scan would read the whole corpus. Read next: dataset.h, many shards as one stream.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/mapped_file.h"

namespace lockstep {

constexpr int64_t shard_header_bytes = 1024;

class Shard {
 public:
  // Opens the file and checks header and exact size. Exit::data.
  Shard(const std::string& path, DataFormat format);

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return tokens_; }  // tokens
  int width() const { return width_; }      // bytes per token: 2 or 4

  // Writes tokens [first, first + count) to `out`. Exit::data for an id outside [0, vocab_size),
  // naming file, position and id, and if the file changed its size. Thread-safe.
  void read(int64_t first, int64_t count, int64_t vocab_size, int32_t* out) const;

  // A hash of the header and of up to 256 evenly spaced blocks of 4 KiB, first and last included: a
  // file up to 1 MiB is hashed in full. Tells data sets apart; does not prove a large file intact.
  uint64_t fingerprint() const;

 private:
  MappedFile file_;
  int64_t tokens_ = 0;
  int width_ = 2;
  const std::byte* ids_ = nullptr;
};

// Writes a shard in llm.c's layout, as a stream: memory use does not grow with the shard. The file
// appears under its name complete and synced, or not at all (written beside, then renamed). A
// writer destroyed before finish() leaves nothing; a killed one leaves NAME.partial.
class ShardWriter {
 public:
  // width: 2 for ids below 65536, else 4. What the system refuses fails as in core/file_error.h.
  ShardWriter(const std::string& path, int width);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void append(std::span<const int32_t> tokens);
  int64_t size() const { return tokens_; }  // tokens so far
  void finish();

 private:
  void flush();
  void write_bytes(const void* bytes, size_t count);

  std::string path_, partial_path_;
  int width_;
  int descriptor_ = -1;
  int64_t tokens_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace lockstep
