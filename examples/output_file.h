// A file being written for good: streamed, counted and hashed on the way, synced at the end. It
// does not rename or clean up: what a half-written file means is for the caller to say
// (checkpoint.h). Read next: saved_state.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/file_error.h"

struct XXH3_state_s;

namespace lockstep {

struct FileSum {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;  // 64-bit xxHash3 of the whole file
  bool operator==(const FileSum&) const = default;
};

// Errors by fail_to(), saying how many of `expected` bytes were written. File size limits become
// errors of the whole process.
class OutputFile {
 public:
  OutputFile(const std::string& path, int64_t expected);  // creates or empties the file
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* bytes, size_t count);
  FileSum finish();  // fsync and close; once

 private:
  [[noreturn]] void refused(int reason) const;

  std::string path_;
  int64_t expected_, written_ = 0;
  int descriptor_ = -1;
  std::shared_ptr<XXH3_state_s> hash_;
};

// Of what was printed: that all of it arrived. Errors by fail_to(), of "standard output".
void finish_output();

// The sum of a file's content as it is on disk now. Exit::data if it cannot be read.
FileSum sum_of_file(const std::string& path);

// PATH itself, or where it leads if it is a link: what may be made, or replaced by a rename.
// Exit::config if something is there that is no file, and would be gone for everyone: a device, a
// pipe, a folder.
std::string replaceable(const std::string& path);

// Replaces a file as a whole: `write` makes and syncs PATH.tmp, which is then renamed. After an
// error the file is as it was, with nothing beside it.
FileSum replace_file(const std::string& path,
                     const std::function<FileSum(const std::string& beside)>& write);
void replace_file(const std::string& path, std::string_view content);

}  // namespace lockstep
