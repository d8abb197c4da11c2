// The files of a host that checks read: its /proc and /sys, or a copy of them in another directory.
//
// A tree reads each file once, so all checks see one state, and it remembers what it read. A bundle has these files, so
// that they can be judged again on another host.
//
// Some facts come from calls instead of files, such as the active MTU of a port. They are files below /asked, which no
// kernel has: put() adds them to the tree of a living host, and a copy has them already.
//
// Thread safety: one thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pollcore::doctor {

/// The directory of a copied tree that has the second reading of files that count something.
inline constexpr const char* kLaterDirectory = "later";

struct Reading {
    std::string text;
    int error = 0;  ///< errno if the file could not be read

    [[nodiscard]] bool ok() const noexcept { return error == 0; }
};

class Tree {
public:
    /// The file of a copy that has the errors of files that could not be read on its host: lines of errno and path.
    static constexpr const char* kUnreadable = "/asked/unreadable";

    /// `root` is "/" for this host. Links of a copied tree lead to places inside of it.
    explicit Tree(std::filesystem::path root);

    /// The file's content. `path` begins with '/'. Reads at most 16 MiB, and only regular files, so that neither a fifo
    /// nor a device in a copied tree can stop the reader.
    [[nodiscard]] const Reading& read(const std::string& path) const;
    /// The file's first line without blanks at its ends, or nothing if it cannot be read.
    [[nodiscard]] std::optional<std::string> line(const std::string& path) const;
    /// The number at the begin of the file, or nothing if there is none.
    [[nodiscard]] std::optional<double> number(const std::string& path) const;
    /// The names in a directory, sorted. Empty if it cannot be read.
    [[nodiscard]] const std::vector<std::string>& list(const std::string& path) const;
    /// Why `path` could not be read: "/proc/x: not there" or "/proc/x: not readable (Permission denied)".
    [[nodiscard]] std::string why_not(const std::string& path) const;

    /// Adds a file, or replaces it.
    void put(const std::string& path, std::string text);
    void put(const std::string& path, Reading reading);

    [[nodiscard]] bool is_this_host() const noexcept { return root_ == "/"; }
    [[nodiscard]] const std::filesystem::path& root() const noexcept { return root_; }
    /// All that was read or put.
    [[nodiscard]] const std::map<std::string, Reading>& readings() const noexcept { return readings_; }
    /// All directories that were listed.
    [[nodiscard]] const std::map<std::string, std::vector<std::string>>& listings() const noexcept { return listings_; }

private:
    [[nodiscard]] int open(const std::string& path, int flags) const;

    std::filesystem::path root_;
    std::map<std::string, int> unreadable_;
    mutable std::map<std::string, Reading> readings_;
    mutable std::map<std::string, std::vector<std::string>> listings_;
};

}  // namespace pollcore::doctor
