// Writing files. Read next: saved_state.h.
#include "examples/output_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "data/mapped_file.h"

namespace lockstep {

OutputFile::OutputFile(const std::string& path, int64_t expected)
    : path_(path), expected_(expected), hash_(XXH3_createState(), XXH3_freeState) {
  make_file_limits_errors();
  XXH3_64bits_reset(hash_.get());
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) refused(errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::write(const void* bytes, size_t count) {
  constexpr size_t chunk = size_t{1} << 20;  // hashed and written while it is in the cache
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = ::write(descriptor_, next, std::min(count, chunk));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) refused(done < 0 ? errno : ENOSPC);
    XXH3_64bits_update(hash_.get(), next, done);
    next += done, count -= done, written_ += done;
  }
}

FileSum OutputFile::finish() {
  check(descriptor_ >= 0, "[file] {} is finished already", path_);
  // close() may report what a network file system could not store.
  const bool synced = fsync(descriptor_) == 0;
  const int reason = errno;
  const bool closed = close(descriptor_) == 0;
  descriptor_ = -1;
  if (!synced || !closed) refused(synced ? errno : reason);
  return {written_, XXH3_64bits_digest(hash_.get())};
}

void OutputFile::refused(int reason) const {
  fail_to("write", path_, reason, fmt::format(" after {} of {} bytes", written_, expected_));
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail_to("write", "standard output", errno != 0 ? errno : EIO);
}

FileSum sum_of_file(const std::string& path) {
  const MappedFile file(path);
  return {file.size(), XXH3_64bits(file.data(), file.size())};
}

std::string replaceable(const std::string& path) {
  constexpr int most_links = 40;  // as the system; more are a circle, which opening it will tell
  std::error_code error;
  std::filesystem::path place = path;
  for (int i = 0; i < most_links && std::filesystem::is_symlink(place, error); ++i)
    place = place.parent_path() / std::filesystem::read_symlink(place, error);
  if (std::filesystem::exists(place, error) && !std::filesystem::is_regular_file(place, error))
    fail(Exit::config, "[file] {} is no file that could be replaced; name a file", path);
  return place.string();
}

FileSum replace_file(const std::string& path,
                     const std::function<FileSum(const std::string& beside)>& write) {
  const std::string beside = path + ".tmp";
  try {
    const FileSum sum = write(beside);
    if (std::rename(beside.c_str(), path.c_str()) != 0) fail_to("replace", path, errno);
    sync_path(std::filesystem::absolute(path).parent_path());
    return sum;
  } catch (const Error&) {
    std::error_code ignored;  // the first error is the one to tell
    std::filesystem::remove(beside, ignored);
    throw;
  }
}

void replace_file(const std::string& path, std::string_view content) {
  replace_file(path, [&](const std::string& beside) {
    OutputFile file(beside, static_cast<int64_t>(content.size()));
    file.write(content.data(), content.size());
    return file.finish();
  });
}

}  // namespace lockstep
