#include "archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::doctor {

Archive::Archive(const std::filesystem::path& file) : file_(file) {
    // O_EXCL follows no link and replaces no file: the path may be in /tmp.
    fd_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ < 0) {
        const int error = errno;
        throw Error(error, error == EEXIST
                               ? fmt::format("{} exists already, and a bundle replaces no file", file.string())
                               : fmt::format("making {}", file.string()));
    }
    writer_ = ::archive_write_new();
    const bool zstd = file.extension() == ".zst";
    if (writer_ == nullptr || ::archive_write_set_format_pax_restricted(writer_) != ARCHIVE_OK ||
        (zstd ? ::archive_write_add_filter_zstd(writer_) : ::archive_write_add_filter_gzip(writer_)) != ARCHIVE_OK ||
        ::archive_write_open_fd(writer_, fd_) != ARCHIVE_OK) {
        // The destructor of an object that was not made does not run.
        const std::string why = writer_ != nullptr && ::archive_error_string(writer_) != nullptr
                                    ? ::archive_error_string(writer_)
                                    : "no memory";
        (void)::archive_write_free(writer_);
        (void)::close(fd_);
        (void)::unlink(file_.c_str());
        throw Error(EIO, fmt::format("beginning the archive {}: {}", file.string(), why));
    }
}

Archive::~Archive() {
    (void)::archive_write_free(writer_);
    if (fd_ >= 0) {
        (void)::close(fd_);
    }
    if (!finished_) {
        (void)::unlink(file_.c_str());
    }
}

void Archive::fail(const char* what) const {
    const char* const why = ::archive_error_string(writer_);
    throw Error(EIO, fmt::format("{} {}: {}", what, file_.string(), why != nullptr ? why : "unknown"));
}

void Archive::add_header(const std::string& name, unsigned type, unsigned mode, std::size_t size) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(::archive_entry_new(), &::archive_entry_free);
    if (entry == nullptr) {
        throw Error(ENOMEM, "no memory for an entry of the archive");
    }
    ::archive_entry_set_pathname(entry.get(), name.c_str());
    ::archive_entry_set_filetype(entry.get(), type);
    ::archive_entry_set_perm(entry.get(), static_cast<mode_t>(mode));
    ::archive_entry_set_size(entry.get(), static_cast<la_int64_t>(size));
    ::archive_entry_set_mtime(entry.get(), std::time(nullptr), 0);
    if (::archive_write_header(writer_, entry.get()) != ARCHIVE_OK) {
        fail("writing");
    }
}

void Archive::add(const std::string& name, std::string_view content) {
    add_header(name, AE_IFREG, 0600, content.size());
    if (::archive_write_data(writer_, content.data(), content.size()) != static_cast<la_ssize_t>(content.size())) {
        fail("writing");
    }
}

void Archive::add_directory(const std::string& name) {
    add_header(name, AE_IFDIR, 0700, 0);
}

void Archive::finish() {
    if (::archive_write_close(writer_) != ARCHIVE_OK) {
        fail("finishing");
    }
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) {
        throw Error(errno, fmt::format("closing {}", file_.string()));
    }
    finished_ = true;
}

}  // namespace pollcore::doctor
