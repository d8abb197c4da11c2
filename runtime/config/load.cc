// Reads a file or text, and returns a checked Config.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "config/schema.hpp"
#include "config/toml_tree.hpp"
#include "config/validation.hpp"

namespace pollcore::config {
namespace {

constexpr std::size_t kFileSizeMax = 1u << 20;

// Returns the key as a message shows it in a path: in quotes if TOML requires quotes for this key.
std::string shown_key(std::string_view key) {
    const bool bare = !key.empty() && key.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-") == key.npos;
    return bare ? std::string(key) : toml_quoted_short(key);
}

void remember_places(const TomlNode& node, const std::string& path, Origin& origin) {
    if (!path.empty()) {
        origin.remember(path, Place{node.line, node.shown()});
    }
    for (std::size_t i = 0; i < node.children.size(); ++i) {
        const TomlNode& child = node.children[i];
        const std::string child_path = node.type == TomlNode::Type::list ? fmt::format("{}[{}]", path, i)
                                       : path.empty()                    ? shown_key(child.key)
                                                      : fmt::format("{}.{}", path, shown_key(child.key));
        remember_places(child, child_path, origin);
    }
}

// The Levenshtein distance, computed row by row.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row[b.size()];
}

[[noreturn]] void refuse_unknown(const TomlNode& node, const std::string& path,
                                 const std::vector<std::string_view>& known, std::string_view accepted,
                                 const Origin& origin) {
    const auto nearest = std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(node.key, a) < edit_distance(node.key, b);
    });
    // A suggestion that has little in common with the key in the file would only mislead.
    const bool near = edit_distance(node.key, *nearest) <= 1 + node.key.size() / 4;
    origin.refuse(path, node.shown(),
                  near ? fmt::format("there is no such key, did you mean \"{}\"?", *nearest) : "there is no such key",
                  accepted);
}

// Puts the values of a file into a Config. Checks types, units, the range of each value, unknown keys and missing keys.
class Reader {
public:
    Reader(const TomlNode& document, const Cpus& cpus, const Origin& origin)
        : document_(document), cpus_(cpus), origin_(origin) {}

    template <class Object>
    void table(const std::string& path, Object& object) const {
        if (const TomlNode* node = document_.find(path)) {
            read_table(*node, path, object);
        }
    }

    template <class Object>
    void list(const std::string& name, std::vector<Object>& objects) const {
        const TomlNode* node = document_.find(name);
        if (node == nullptr) {
            return;
        }
        if (node->type != TomlNode::Type::list) {
            origin_.refuse(name, node->shown(), wrong_type(*node, "a list of tables").text,
                           fmt::format("a table [[{}]] for each {}", name, name));
        }
        for (std::size_t i = 0; i < node->children.size(); ++i) {
            read_table(node->children[i], fmt::format("{}[{}]", name, i), objects.emplace_back());
        }
    }

private:
    template <class Object>
    void read_table(const TomlNode& node, const std::string& path, Object& object) const {
        if (node.type != TomlNode::Type::table) {
            origin_.refuse(path, node.shown(), wrong_type(node, "a table").text,
                           fmt::format("a table with the keys {}", key_list(object, true)));
        }
        refuse_unknown_keys(node, path, object);
        each_field(object, cpus_, [&](const Key& key, auto member, const auto& rule) {
            const std::string key_path = fmt::format("{}.{}", path, key.name);
            const TomlNode* value = node.find(key.name);
            if (value == nullptr) {
                if (key.required) {
                    origin_.refuse_absent(key_path, "this key is required and missing", rule.accepted());
                }
                return;
            }
            if (!key.applies) {
                origin_.refuse(key_path, value->shown(), fmt::format("this key is for {} only", key.only_for),
                               key_list(object, false));
            }
            read_value(*value, key_path, rule, object.*member);
        });
    }

    template <class Rule, class Field>
    void read_value(const TomlNode& node, const std::string& path, const Rule& rule, Field& field) const {
        const auto parsed = rule.read(node);
        if (const auto* reason = std::get_if<Reason>(&parsed)) {
            origin_.refuse(path, node.shown(), reason->text, rule.accepted());
        }
        const auto& value = std::get<typename Rule::Value>(parsed);
        // Checks the value before it goes into the field, because the field may be too narrow for the value.
        if (const Refusal why = rule.check(value)) {
            origin_.refuse(path, node.shown(), *why, rule.accepted());
        }
        field = static_cast<Field>(value);
    }

    template <class Object>
    void refuse_unknown_keys(const TomlNode& node, const std::string& path, const Object& object) const {
        std::vector<std::string_view> known;
        each_field(object, cpus_, [&](const Key& key, auto, const auto&) { known.push_back(key.name); });
        for (const TomlNode& child : node.children) {
            if (std::find(known.begin(), known.end(), child.key) == known.end()) {
                refuse_unknown(child, fmt::format("{}.{}", path, shown_key(child.key)), known, key_list(object, true),
                               origin_);
            }
        }
    }

    const TomlNode& document_;
    const Cpus& cpus_;
    const Origin& origin_;
};

// Chooses the core for each worker that has none in the file. If this process may use only one CPU, also chooses the
// way to wait. CPU 0 is chosen last, because a machine does most of its other work there.
void choose_by_machine(const TomlNode& document, const Cpus& cpus, const Origin& origin,
                       std::vector<WorkerConfig>& workers) {
    const TomlNode* const tables = document.find("worker");
    std::set<std::uint32_t> free = cpus.allowed;
    std::vector<std::size_t> without_core;
    for (std::size_t i = 0; i < workers.size(); ++i) {
        const TomlNode& table = tables->children[i];
        if (table.find("core") == nullptr) {
            without_core.push_back(i);
        } else {
            free.erase(workers[i].core);
        }
        if (table.find("idle") == nullptr && cpus.one_for_all()) {
            workers[i].idle = IdlePolicy::yield;
        }
    }
    for (const std::size_t i : without_core) {
        if (free.empty()) {
            origin.refuse_absent(fmt::format("worker[{}].core", i),
                                 "this key is missing, and each core that this process may use has a worker",
                                 fmt::format("no more workers than cores, which are {}", print_cpu_list(cpus.allowed)));
        }
        workers[i].core = *free.rbegin();
        free.erase(workers[i].core);
    }
}

struct SectionNames {
    std::vector<std::string_view> names;
    std::string accepted;

    template <class Object>
    void table(std::string_view name, const Object&) {
        add(name, fmt::format("[{}]", name));
    }
    template <class Object>
    void list(std::string_view name, const std::vector<Object>&) {
        add(name, fmt::format("[[{}]]", name));
    }

private:
    void add(std::string_view name, const std::string& header) {
        names.push_back(name);
        accepted += accepted.empty() ? "" : ", ";
        accepted += header;
    }
};

std::string read_file(const std::filesystem::path& path, const Origin& origin) {
    const auto refuse = [&](int error) {
        origin.refuse_text(0, fmt::format("cannot be read: {}", std::generic_category().message(error)),
                           "a TOML file that can be read");
    };
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
        refuse(errno);
    }
    std::string text;
    std::array<char, 16384> chunk;
    for (;;) {
        const ssize_t got = ::read(file.get(), chunk.data(), chunk.size());
        if (got == 0) {
            return text;
        }
        if (got > 0) {
            text.append(chunk.data(), static_cast<std::size_t>(got));
        } else if (errno != EINTR) {
            refuse(errno);
        }
        if (text.size() > kFileSizeMax) {
            origin.refuse_text(0, "this is too large for a configuration",
                               fmt::format("a file of at most {}", print_bytes(kFileSizeMax)));
        }
    }
}

// Reads a Config from `text`. Enters the place of each key in the file into `origin`.
Config parse_into(std::string_view text, const Cpus& cpus, Origin& origin) {
    const TomlNode document = read_toml(text, origin);
    remember_places(document, "", origin);

    Config config;
    SectionNames sections;
    each_section(config, sections);
    for (const TomlNode& child : document.children) {
        if (std::find(sections.names.begin(), sections.names.end(), child.key) == sections.names.end()) {
            refuse_unknown(child, shown_key(child.key), sections.names, sections.accepted, origin);
        }
    }
    each_section(config, Reader(document, cpus, origin));
    choose_by_machine(document, cpus, origin, config.workers);
    check(config, cpus, origin);
    return config;
}

}  // namespace

Config parse(std::string_view text, const std::string& name, const Cpus& cpus) {
    Origin origin(name);
    return parse_into(text, cpus, origin);
}

Config load(const std::filesystem::path& file, const Cpus& cpus) {
    Origin origin(file.string());
    return parse_into(read_file(file, origin), cpus, origin);
}

Config load_and_check_paths(const std::filesystem::path& file) {
    Origin origin(file.string());
    Config config = parse_into(read_file(file, origin), Cpus::of_this_process(), origin);
    check_paths(config, origin);
    return config;
}

}  // namespace pollcore::config

namespace pollcore {

Config parse_config(std::string_view text, const std::string& name) {
    return config::parse(text, name, config::Cpus::of_this_process());
}

Config load_config(const std::filesystem::path& file) {
    return config::load(file, config::Cpus::of_this_process());
}

}  // namespace pollcore
