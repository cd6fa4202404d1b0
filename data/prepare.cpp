// Text to shards. Read next: tokenizer.cpp.
#include "data/prepare.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "core/file_error.h"
#include "data/mapped_file.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

// SentencePiece's time per byte grows with the piece: 4 KiB take 0.66 of the time of 64 KiB.
constexpr size_t piece_bytes = size_t{4} << 10;
constexpr size_t part_bytes = size_t{1} << 20;  // of one thread

void check_options(const PrepareOptions& options) {
  if (options.text.empty() || options.out.empty())
    fail(Exit::usage, "[data] text is \"{}\" and out is \"{}\"; name a text file and a folder",
         options.text, options.out);
  if (!(options.val_fraction >= 0 && options.val_fraction < 1))
    fail(Exit::usage, "[data] val_fraction is {}; use 0 up to below 1", options.val_fraction);
  const int64_t most = (int64_t{1} << 31) - 1;  // llm.c reads the number as a signed integer
  if (options.shard_tokens < 1 || options.shard_tokens > most)
    fail(Exit::usage, "[data] shard_tokens is {}; use 1 to {}", options.shard_tokens, most);
  const bool trains = options.tokenizer == "train";
  if (trains && options.vocab_size < 1)
    fail(Exit::usage, "[data] tokenizer train needs vocab_size, such as 8192; it is {}",
         options.vocab_size);
  if (!trains && options.vocab_size != 0)
    fail(
        Exit::usage,
        "[data] vocab_size {} is for tokenizer train only; tokenizer is \"{}\", which has its own: "
        "use tokenizer train, or remove vocab_size",
        options.vocab_size, options.tokenizer);
  if (options.tokenizer == "none")
    fail(Exit::usage, "[data] tokenizer none cannot read text; use bytes, train or a .model");
}

// Where validation text begins: the last `fraction`, moved on to the next line or, where no line
// ends soon, to the next character.
size_t split_point(std::string_view text, double fraction) {
  if (fraction == 0) return text.size();
  const auto validation = static_cast<size_t>(std::llround(fraction * text.size()));
  size_t split = text.size() - std::min(validation, text.size());
  const size_t line_end = text.substr(split, part_bytes).find('\n');
  if (line_end != text.npos && split + line_end + 1 < text.size()) return split + line_end + 1;
  while (split < text.size() && (text[split] & 0xC0) == 0x80) ++split;
  return split;
}

// NAME_000000.bin, NAME_000001.bin, ...: each full but the last.
class ShardSet {
 public:
  ShardSet(fs::path folder, std::string name, int width, int64_t most_tokens)
      : folder_(std::move(folder)), name_(std::move(name)), width_(width), most_(most_tokens) {}

  void append(std::span<const int32_t> tokens) {
    tokens_ += tokens.size();
    while (!tokens.empty()) {
      if (!writer_) {
        const std::string file = fmt::format("{}_{:06}.bin", name_, shards_++);
        writer_ = std::make_unique<ShardWriter>((folder_ / file).string(), width_);
      }
      const size_t room = most_ - writer_->size();
      const auto part = tokens.first(std::min(room, tokens.size()));
      writer_->append(part);
      tokens = tokens.subspan(part.size());
      if (writer_->size() == most_) finish();
    }
  }
  void finish() {
    if (writer_) writer_->finish();
    writer_.reset();
  }
  int64_t tokens() const { return tokens_; }
  int64_t shards() const { return shards_; }

 private:
  fs::path folder_;
  std::string name_;
  int width_;
  int64_t most_, tokens_ = 0, shards_ = 0;
  std::unique_ptr<ShardWriter> writer_;
};

std::vector<int32_t> encode(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    const auto piece = tokenizer.encode(take_piece(text, piece_bytes));
    tokens.insert(tokens.end(), piece.begin(), piece.end());
  }
  return tokens;
}

// Every processor encodes a part of the text; the parts are written in their order.
void encode_all(const MappedFile& file, std::string_view text, const Tokenizer& tokenizer,
                ShardSet& shards) {
  const size_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::deque<std::future<std::vector<int32_t>>> running;
  while (!text.empty() || !running.empty()) {
    if (!text.empty() && running.size() < threads) {
      file.check_size();
      const std::string_view part = take_piece(text, part_bytes);
      running.push_back(
          std::async(std::launch::async, [part, &tokenizer] { return encode(part, tokenizer); }));
    } else {
      shards.append(running.front().get());
      running.pop_front();
    }
  }
  shards.finish();
}

void write_file(const fs::path& path, std::string_view content) {
  make_file_limits_errors();
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) fail_to("write", path.string(), errno != 0 ? errno : EIO);
  sync_path(path.string());
}

constexpr const char* record_name = "made_from.txt";
constexpr const char* ids_key = "token ids = ";

bool reads_model(const PrepareOptions& options) {
  return options.tokenizer != "bytes" && options.tokenizer != "train";
}

// What the shards depend on, a line each: the options and the content of what was read.
std::string record_of(PrepareOptions options) {
  std::string record;
  const auto add = [&](std::string_view name, const auto& value, std::string_view) {
    if (name != "out") record += fmt::format("{} = {}\n", name, value);
  };
  options.visit(add);
  const auto add_content = [&](const std::string& input) {
    const MappedFile file(input);
    record += fmt::format("content of {} = {} bytes, {:016x}\n", input, file.size(),
                          XXH3_64bits(file.text().data(), file.text().size()));
  };
  add_content(options.text);
  if (reads_model(options)) add_content(options.tokenizer);
  return record;
}

// And what was made of it.
std::string inventory(const fs::path& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != record_name)
      lines.push_back(
          fmt::format("made {} = {} bytes\n", entry.path().filename().string(), entry.file_size()));
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, ""));
}

std::string read_record(const fs::path& folder) {
  std::ifstream file(folder / record_name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Of a record, what its last line says of the tokenizer; older ones say nothing.
std::string maker_line(const std::string& record) {
  const size_t at = record.rfind(ids_key);
  return at == record.npos ? "" : record.substr(at);
}

// What data.tokenizer should say.
std::string maker_name(const fs::path& folder, const std::string& record) {
  std::istringstream lines(record);
  for (std::string line; std::getline(lines, line);)
    if (const std::string_view key = "tokenizer = "; line.starts_with(key)) {
      const std::string name = line.substr(key.size());
      return name == "train" ? (folder / "tokenizer.model").string() : name;
    }
  return "";
}

// Why the shards that are there are not the wanted ones, as far as their record tells.
std::string difference(const fs::path& folder, const std::string& wanted) {
  std::istringstream was(read_record(folder)), is(wanted);
  for (std::string before, now; std::getline(was, before) && std::getline(is, now);)
    if (before != now) return fmt::format(" (made with {}, asked for {})", before, now);
  return was.str().empty() ? "" : " (its files are not those that were made)";
}

// OUT.partial, which becomes OUT by complete() and is removed otherwise.
class PartialFolder {
 public:
  // Refuses early what the last rename would refuse.
  PartialFolder(const fs::path& out, const std::string& record)
      : out_(out), partial_(out.string() + ".partial") {
    std::error_code error;
    if (fs::exists(out, error) && (!fs::is_directory(out, error) || !fs::is_empty(out, error)))
      fail(Exit::data,
           "[data] {} exists and is not an empty folder{}; remove it or name another out",
           out.string(), difference(out, record));
    fs::remove_all(partial_, error);  // of an attempt that was killed
    if (!error) fs::create_directories(partial_, error);
    if (error) fail_to("create", partial_.string(), error.value());
  }
  ~PartialFolder() {
    std::error_code ignored;
    if (!complete_) fs::remove_all(partial_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const fs::path& path() const { return partial_; }
  void complete() {
    sync_path(partial_.string());
    std::error_code error;
    fs::rename(partial_, out_, error);
    if (error) fail_to("rename to " + out_.string(), partial_.string(), error.value());
    complete_ = true;
    sync_path(fs::absolute(out_).parent_path().string());
  }

 private:
  fs::path out_, partial_;
  bool complete_ = false;
};

// Where validation begins, in text that can be split and read.
size_t checked_split(const PrepareOptions& options, std::string_view text) {
  if (text.empty()) fail(Exit::data, "[data] {} is empty; name a file with text", options.text);
  const size_t split = split_point(text, options.val_fraction);
  const size_t bad = options.tokenizer == "bytes" ? text.npos : invalid_utf8(text);
  if (bad != text.npos)
    fail(Exit::data,
         "[data] {} is not UTF-8 at byte {}; convert it (iconv -t UTF-8) or use tokenizer bytes",
         options.text, bad);
  if (split == 0)
    fail(Exit::data,
         "[data] {} of {} bytes and val_fraction {} leave nothing to train on; use more text or a "
         "smaller fraction",
         options.text, text.size(), options.val_fraction);
  return split;
}

}  // namespace

bool is_prepared(const PrepareOptions& options) {
  check_options(options);
  if (!fs::exists(options.text)) return false;
  if (reads_model(options) && !fs::exists(options.tokenizer)) return false;
  const std::string record = read_record(options.out);
  return !record.empty() &&
         record == record_of(options) + inventory(options.out) + maker_line(record);
}

PrepareResult prepare(const PrepareOptions& options) {
  check_options(options);
  const MappedFile file(options.text);
  const std::string_view text = file.text();
  const bool trains = options.tokenizer == "train";
  std::unique_ptr<Tokenizer> tokenizer;
  if (!trains) tokenizer = open_tokenizer(options.tokenizer);
  const size_t split = checked_split(options, text);
  fs::path out = options.out;
  if (!out.has_filename()) out = out.parent_path();  // a trailing slash
  const std::string record = record_of(options);
  PartialFolder partial(out, record);
  if (trains) {
    const fs::path model = partial.path() / "tokenizer.model";
    write_file(model, train_sentencepiece(text.substr(0, split), options.vocab_size));
    tokenizer = open_tokenizer(model.string());
  }

  const int width = tokenizer->vocab_size() <= 65536 ? 2 : 4;
  ShardSet train(partial.path(), "train", width, options.shard_tokens);
  ShardSet val(partial.path(), "val", width, options.shard_tokens);
  encode_all(file, text.substr(0, split), *tokenizer, train);
  encode_all(file, text.substr(split), *tokenizer, val);
  write_file(partial.path() / record_name,
             record + inventory(partial.path()) + ids_key + tokenizer->identity() + "\n");
  partial.complete();

  PrepareResult result;
  result.text_bytes = file.size();
  result.train_tokens = train.tokens(), result.train_shards = train.shards();
  result.val_tokens = val.tokens(), result.val_shards = val.shards();
  result.vocab_size = tokenizer->vocab_size();
  result.token_bytes = width;
  result.train = (out / "train_*.bin").string();
  if (val.tokens() > 0) result.val = (out / "val_*.bin").string();
  result.tokenizer = trains ? (out / "tokenizer.model").string() : options.tokenizer;
  return result;
}

std::vector<std::string> check_made_by(const Tokenizer& tokenizer, const Dataset& data) {
  std::vector<std::string> unknown;
  for (const std::string& folder : data.folders()) {
    const std::string record = read_record(folder), line = maker_line(record);
    if (line.empty()) {
      unknown.push_back(folder);
      continue;
    }
    const size_t begin = std::string_view(ids_key).size();
    const std::string maker = line.substr(begin, line.find('\n') - begin);
    if (maker != tokenizer.identity())
      fail(Exit::config,
           "[data.tokenizer] is {}, but {} made the shards in {} ({} there); use --set "
           "data.tokenizer={}, or shards that this tokenizer made",
           tokenizer.identity(), maker, folder, record_name, maker_name(folder, record));
  }
  return unknown;
}

}  // namespace lockstep
