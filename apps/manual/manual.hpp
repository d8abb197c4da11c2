// A program's manual: the end of --help-all, the manual pages, the completion for bash, and --version. The pages and
// the completion are made from the definition of the command line.
//
// The type name of an option describes its value, for people and for bash: `{a,b}` is a or b, FILE and SOCKET are a
// path, DEVICE is an RDMA device, or a software device.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace pollcore::manual {

/// A section of a manual, besides the options.
struct Section {
    std::string title;  ///< as man-pages(7) spells it: "Exit status"
    /// Each entry is a term and its meaning. With an empty term, the meaning is a paragraph.
    std::vector<std::pair<std::string, std::string>> entries;
};

/// The manual page of a program, or of one of its subcommands.
struct Page {
    const CLI::App* command = nullptr;
    std::string name;     ///< "pollperf-lat"
    std::string summary;  ///< for whatis(1)
    std::vector<Section> sections;
    std::vector<std::string> see_also;  ///< "pollcored(1)"
    bool has_subcommands = false;       ///< the page describes the subcommands, which have no pages of their own
};

/// The text in lines of at most `columns` characters. The first line begins after `first` characters that stand before
/// it, the others with `indent` blanks.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t first, std::size_t indent, std::size_t columns);
/// The sections as the end of --help-all. Set it as the footer of the command.
[[nodiscard]] std::string footer(const std::vector<Section>& sections);
/// The page in the format of man(7), for section 1.
[[nodiscard]] std::string manual_page(const Page& page);
/// A bash script with a function that completes the program's options, their values and its subcommands.
[[nodiscard]] std::string bash_completion(const CLI::App& program);
/// The text that --version prints: name and version on the first line, then how this program was built.
[[nodiscard]] std::string version_text(std::string_view program);

}  // namespace pollcore::manual
