#include "tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace pollcore::doctor {
namespace {

constexpr std::size_t kFileMax = std::size_t{16} << 20;

std::string trimmed(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    return begin == text.npos ? "" : std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

Reading read_all(int opened) {
    if (opened < 0) {
        return {.text = {}, .error = errno};
    }
    const UniqueFd fd(opened);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) {
        return {.text = {}, .error = errno};
    }
    if (!S_ISREG(status.st_mode)) {
        return {.text = {}, .error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL};
    }
    Reading reading;
    std::array<char, 65536> part{};
    while (reading.text.size() < kFileMax) {
        const ssize_t got = ::read(fd.get(), part.data(), part.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return {.text = {}, .error = errno};
        }
        if (got == 0) {
            return reading;
        }
        reading.text.append(part.data(), static_cast<std::size_t>(got));
    }
    return {.text = {}, .error = EFBIG};
}

}  // namespace

Tree::Tree(std::filesystem::path root) : root_(std::move(root)) {
    if (is_this_host()) {
        return;
    }
    std::istringstream lines(read(kUnreadable).text);
    int error = 0;
    for (std::string path; lines >> error && std::getline(lines >> std::ws, path);) {
        unreadable_[path] = error;
    }
    // These files are asked for again with their errors.
    readings_.clear();
}

// In a copied tree, which may be of anybody, openat2(2) with RESOLVE_IN_ROOT keeps links and ".." inside.
int Tree::open(const std::string& path, int flags) const {
    flags |= O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    if (is_this_host()) {
        return ::open(path.c_str(), flags);
    }
    const UniqueFd root(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root.valid()) {
        return -1;
    }
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags);
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    return static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how));
}

const Reading& Tree::read(const std::string& path) const {
    const auto known = readings_.find(path);
    if (known != readings_.end()) {
        return known->second;
    }
    Reading reading = read_all(open(path, 0));
    if (const auto refused = unreadable_.find(path); refused != unreadable_.end() && reading.error == ENOENT) {
        reading.error = refused->second;
    }
    return readings_.emplace(path, std::move(reading)).first->second;
}

std::optional<std::string> Tree::line(const std::string& path) const {
    const Reading& reading = read(path);
    return reading.ok() ? std::optional(trimmed(reading.text.substr(0, reading.text.find('\n')))) : std::nullopt;
}

std::optional<double> Tree::number(const std::string& path) const {
    const std::optional<std::string> text = line(path);
    double value = 0;
    if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

const std::vector<std::string>& Tree::list(const std::string& path) const {
    const auto known = listings_.find(path);
    if (known != listings_.end()) {
        return known->second;
    }
    std::vector<std::string> names;
    UniqueFd fd(open(path, O_DIRECTORY));
    if (fd.valid()) {
        const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), &::closedir);
        if (directory != nullptr) {
            (void)fd.release();  // the stream closes it
            while (const dirent* const entry = ::readdir(directory.get())) {
                if (entry->d_name[0] != '.') {
                    names.emplace_back(entry->d_name);
                }
            }
        }
    }
    // Files that were put.
    const std::string below = path + "/";
    for (auto each = readings_.lower_bound(below); each != readings_.end() && each->first.starts_with(below); ++each) {
        if (each->second.ok()) {
            const std::string rest = each->first.substr(below.size());
            names.push_back(rest.substr(0, rest.find('/')));
        }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return listings_.emplace(path, std::move(names)).first->second;
}

std::string Tree::why_not(const std::string& path) const {
    const int error = read(path).error;
    switch (error) {
        case 0: return path + ": says nothing that is understood";
        case ENOENT:
        case ENOTDIR:
        case ENODEV:
        case ENXIO: return path + ": not there";
        default: return fmt::format("{}: not readable ({})", path, std::generic_category().message(error));
    }
}

void Tree::put(const std::string& path, std::string text) {
    put(path, Reading{.text = std::move(text), .error = 0});
}

void Tree::put(const std::string& path, Reading reading) {
    readings_[path] = std::move(reading);
    listings_.clear();  // they are read again with this file
}

}  // namespace pollcore::doctor
