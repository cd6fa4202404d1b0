// Token shards on disk. Read next: dataset.cpp.
#include "data/shard.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/file_error.h"

namespace lockstep {

namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

using Header = std::array<int32_t, 256>;
static_assert(sizeof(Header) == shard_header_bytes);

struct Layout {
  int32_t magic, version;
  int width;
};
constexpr std::array<Layout, 2> layouts = {{{20240520, 1, 2}, {20240801, 7, 4}}};

bool starts_with_magic(const MappedFile& file) {
  if (file.size() < shard_header_bytes) return false;
  int32_t magic = 0;
  std::memcpy(&magic, file.data(), sizeof magic);
  return std::any_of(layouts.begin(), layouts.end(), [&](auto& l) { return l.magic == magic; });
}

// Widens `count` ids and returns the largest.
template <class Id>
uint32_t widen(const std::byte* from, int64_t count, int32_t* out) {
  const Id* ids = reinterpret_cast<const Id*>(from);
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max<uint32_t>(largest, ids[i]);
    out[i] = static_cast<int32_t>(ids[i]);
  }
  return largest;
}

}  // namespace

Shard::Shard(const std::string& path, DataFormat format) : file_(path) {
  const int64_t bytes = file_.size();
  if (format == DataFormat::nanogpt_u16) {
    if (bytes == 0 || bytes % 2 != 0)
      fail(Exit::data,
           "[data] {} has {} bytes; a nanogpt_u16 file is a whole, positive number of 2-byte ids",
           path, bytes);
    if (starts_with_magic(file_))
      fail(Exit::data, "[data] {} starts with llm.c's header; use data.format: llmc", path);
    tokens_ = bytes / 2, width_ = 2, ids_ = file_.data();
    return;
  }
  check(format == DataFormat::llmc, "[shard] synthetic data has no files");
  if (bytes < shard_header_bytes)
    fail(Exit::data,
         "[data] {} has {} bytes, less than llm.c's header of {}; use data.format: nanogpt_u16 for "
         "headerless files",
         path, bytes, shard_header_bytes);
  Header header;
  std::memcpy(header.data(), file_.data(), sizeof header);
  const auto layout = std::find_if(layouts.begin(), layouts.end(), [&](auto& l) {
    return l.magic == header[0] && l.version == header[1];
  });
  if (layout == layouts.end())
    fail(Exit::data,
         "[data] {} starts with magic {} version {}; llm.c's token files start with 20240520 "
         "version 1 (uint16) or 20240801 version 7 (uint32); use data.format: nanogpt_u16 for "
         "headerless files",
         path, header[0], header[1]);
  tokens_ = static_cast<uint32_t>(header[2]);
  width_ = layout->width;
  const int64_t expected = shard_header_bytes + width_ * tokens_;
  if (bytes != expected)
    fail(Exit::data,
         "[data] {} has {} bytes, its header announces {} tokens of {} bytes = {} bytes; the file "
         "is cut or not complete: copy or make it again",
         path, bytes, tokens_, width_, expected);
  ids_ = file_.data() + shard_header_bytes;
}

void Shard::read(int64_t first, int64_t count, int64_t vocab_size, int32_t* out) const {
  check(first >= 0 && count >= 0 && first + count <= tokens_,
        "[shard] tokens {} to {} of {}, which has {}", first, first + count, path(), tokens_);
  file_.check_size();
  const std::byte* from = ids_ + first * width_;
  const int64_t largest =
      width_ == 2 ? widen<uint16_t>(from, count, out) : widen<uint32_t>(from, count, out);
  if (largest < vocab_size) return;
  const auto bad = std::find_if(
      out, out + count, [&](int32_t id) { return static_cast<uint32_t>(id) >= vocab_size; });
  fail(Exit::data,
       "[data] {}: token {} has id {}, outside the vocabulary of {}; use the model.vocab_size of "
       "the tokenizer that made the file, and its data.format",
       path(), first + (bad - out), static_cast<uint32_t>(*bad), vocab_size);
}

uint64_t Shard::fingerprint() const {
  constexpr int64_t block = 4096, most_blocks = 256;
  const int64_t blocks = (file_.size() + block - 1) / block;
  const int64_t samples = std::min(blocks, most_blocks);
  file_.check_size();
  uint64_t hash = XXH3_64bits(&tokens_, sizeof tokens_);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t begin = (samples == 1 ? 0 : i * (blocks - 1) / (samples - 1)) * block;
    const int64_t length = std::min(block, file_.size() - begin);
    hash = XXH3_64bits_withSeed(file_.data() + begin, length, hash);
  }
  return hash;
}

ShardWriter::ShardWriter(const std::string& path, int width)
    : path_(path), partial_path_(path + ".partial"), width_(width) {
  check(width == 2 || width == 4, "[shard] width {} is neither 2 nor 4", width);
  make_file_limits_errors();
  descriptor_ = open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_to("create", partial_path_, errno);
  buffer_.reserve(size_t{1} << 20);
  const Header header{};  // the real one is written last
  write_bytes(header.data(), sizeof header);
}

ShardWriter::~ShardWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  std::remove(partial_path_.c_str());
}

void ShardWriter::append(std::span<const int32_t> tokens) {
  const int64_t least_bad_id = width_ == 2 ? 1 << 16 : int64_t{1} << 31;
  if (tokens_ + static_cast<int64_t>(tokens.size()) > std::numeric_limits<uint32_t>::max())
    fail(Exit::data, "[data] {} would have more than 2^32 - 1 tokens; use smaller shards", path_);
  for (int32_t id : tokens) {
    if (id < 0 || id >= least_bad_id)
      fail(Exit::data, "[data] {}: token {} has id {}, which {} bytes do not hold", path_, tokens_,
           id, width_);
    if (buffer_.size() + width_ > buffer_.capacity()) flush();
    const auto* bytes = reinterpret_cast<const std::byte*>(&id);
    buffer_.insert(buffer_.end(), bytes, bytes + width_);
    ++tokens_;
  }
}

void ShardWriter::flush() {
  write_bytes(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void ShardWriter::write_bytes(const void* bytes, size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = write(descriptor_, next, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      fail_to("write", partial_path_, written < 0 ? errno : ENOSPC,
              fmt::format(" after {} tokens, no shard was made", tokens_));
    next += written, count -= written;
  }
}

void ShardWriter::finish() {
  check(descriptor_ >= 0, "[shard] {} is finished already", path_);
  flush();
  const auto layout = std::find_if(layouts.begin(), layouts.end(),
                                   [&](const Layout& l) { return l.width == width_; });
  Header header{};
  header[0] = layout->magic, header[1] = layout->version;
  header[2] = static_cast<int32_t>(static_cast<uint32_t>(tokens_));
  const bool rewound = lseek(descriptor_, 0, SEEK_SET) == 0;
  if (rewound) write_bytes(header.data(), sizeof header);
  if (!rewound || fsync(descriptor_) != 0 || rename(partial_path_.c_str(), path_.c_str()) != 0)
    fail_to("complete", path_, errno);
  close(descriptor_);
  descriptor_ = -1;
  sync_path(std::filesystem::absolute(path_).parent_path());
}

}  // namespace lockstep
