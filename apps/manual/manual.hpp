// A program's manual, made from the command line that it parses: its --help, its manual pages, and what bash completes.
//
// A type name of an option says what its value is, to people and to bash: `{a,b}` one of these, FILE or SOCKET a path,
// DEVICE an RDMA device.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace pollcore::manual {

/// What a manual says beside the options.
struct Section {
    std::string title;  ///< as man-pages(7) spells it: "Exit status"
    /// A term and what it means; without a term, a paragraph.
    std::vector<std::pair<std::string, std::string>> entries;
};

/// A page of a program, or of one of its subcommands.
struct Page {
    const CLI::App* command = nullptr;
    std::string name;     ///< "pollperf-lat"
    std::string summary;  ///< for whatis(1)
    std::vector<Section> sections;
    std::vector<std::string> see_also;  ///< "pollcored(1)"
};

/// The end of --help. To be set as footer of the command.
[[nodiscard]] std::string footer(const std::vector<Section>& sections);
/// The page in man(7), section 1.
[[nodiscard]] std::string manual_page(const Page& page);
/// A function that completes the program's options, their values and its subcommands.
[[nodiscard]] std::string bash_completion(const CLI::App& program);
/// What --version prints: name and version on the first line, then how this program was built.
[[nodiscard]] std::string version_text(std::string_view program);

}  // namespace pollcore::manual
