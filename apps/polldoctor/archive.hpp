// A compressed tar archive, made by libarchive(3).
//
// Thread safety: one thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

struct archive;

namespace pollcore::doctor {

class Archive {
public:
    /// Makes the file, which only its owner may read. The name ends with .tar.gz or .tar.zst. Throws Error: EEXIST if
    /// there is such a file already, or what open(2) says.
    explicit Archive(const std::filesystem::path& file);
    /// Removes the file, unless it was finished.
    ~Archive();
    Archive(const Archive&) = delete;
    Archive& operator=(const Archive&) = delete;

    /// Adds a file, or with `directory` an empty directory. Throws Error if it cannot be written.
    void add(const std::string& name, std::string_view content);
    void add_directory(const std::string& name);
    /// Writes the end. Throws Error if not all is on the file system.
    void finish();

private:
    void add_header(const std::string& name, unsigned type, unsigned mode, std::size_t size);
    [[noreturn]] void fail(const char* what) const;

    std::filesystem::path file_;
    int fd_ = -1;
    struct archive* writer_ = nullptr;
    bool finished_ = false;
};

}  // namespace pollcore::doctor
