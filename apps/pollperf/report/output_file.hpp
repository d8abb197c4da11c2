// Writes a result to a file that the user has named.
//
// Thread safety: one thread uses a path.
#pragma once

#include <filesystem>
#include <string>

namespace pollcore::perf {

/// Writes the content to the file. A regular file is replaced as a whole, so that no reader sees half a result, and an
/// old result survives a full disk. Everything else is written to, such as /dev/stdout or a pipe. Throws
/// pollcore::Error, which names `option`, if the file cannot be written.
void write_file(const std::filesystem::path& path, const std::string& content, const char* option);

/// Throws pollcore::Error, which names `option`, if write_file() could not write the file. Changes no file. A
/// measurement calls this at its beginning, because its end is late for the news that the directory does not exist.
void check_writable(const std::filesystem::path& path, const char* option);

}  // namespace pollcore::perf
