#include "exposition.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace pollcore::stat {
namespace {

// Of one series. A segment may have thousands of fields that become labels, and anybody may make a segment.
constexpr std::size_t kLabelsMax = 16;
constexpr std::size_t kSeriesBytesMax = 4096;

constexpr std::size_t kNameMax = 100;
constexpr std::size_t kLabelValueMax = 256;

std::string value_text_of(const MetricValue& value) {
    return std::visit([](auto number) { return fmt::format("{}", number); }, value);
}

/// The number of bytes of the UTF-8 character that `text` begins with; 0 if it begins with none, or with a control
/// character.
std::size_t character_bytes(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = byte(0);
    if (first < 0x80) {
        return first >= 0x20 && first != 0x7f ? 1 : 0;
    }
    const std::size_t bytes = first >= 0xf5 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
    if (bytes == 0 || bytes > text.size()) {
        return 0;
    }
    unsigned code = first & (0x7fu >> bytes);
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xc0u) != 0x80) {
            return 0;
        }
        code = code << 6 | (byte(i) & 0x3fu);
    }
    constexpr unsigned kFirstAfterControls = 0xa0;
    const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
    const bool no_character = (code >= 0xd800 && code < 0xe000) || code > 0x10ffff || code < kFirstAfterControls;
    return too_long || no_character ? 0 : bytes;
}

std::string help_text(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t bytes = character_bytes(text.substr(i));
        out += bytes == 0 ? "?" : text[i] == '\\' ? "\\\\" : std::string(text.substr(i, bytes));
        i += std::max<std::size_t>(bytes, 1);
    }
    return out;
}

}  // namespace

std::string metric_name(std::string_view text) {
    std::string name(text.substr(0, kNameMax));
    for (char& c : name) {
        const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        c = fits ? c : '_';
    }
    return name;
}

std::string label_value(std::string_view text) {
    std::string out;
    std::size_t i = 0;
    while (i < text.size() && out.size() < kLabelValueMax) {
        const std::size_t bytes = character_bytes(text.substr(i));
        if (text[i] == '\n') {
            out += "\\n";
        } else if (bytes == 0) {
            out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(text[i]));
        } else if (text[i] == '"' || text[i] == '\\') {
            out += '\\';
            out += text[i];
        } else {
            out += text.substr(i, bytes);
        }
        i += std::max<std::size_t>(bytes, 1);
    }
    return i < text.size() ? out + "..." : out;
}

void Exposition::begin_source(Labels common, std::size_t samples_max) {
    common_ = std::move(common);
    samples_max_ = samples_max;
    samples_ = 0;
    left_out_ = 0;
    seen_.clear();
}

Exposition::Family* Exposition::family(const std::string& name, std::string_view type, std::string_view help) {
    const auto [at, added] = families_.try_emplace(name, Family{.type = type, .help = help_text(help), .samples = {}});
    if (!added && at->second.type != type) {
        ++left_out_;
        return nullptr;
    }
    return &at->second;
}

std::string Exposition::labels_text(const Labels& labels) const {
    std::string text;
    std::vector<std::string> names;
    for (const Labels* list : {&common_, &labels}) {
        for (const auto& [wanted, value] : *list) {
            const std::string name = metric_name(wanted);
            if (names.size() == kLabelsMax) {
                return text;
            }
            // Prometheus keeps "le" and what begins with two underscores for itself, and a label can be there only
            // once.
            if (name.empty() || name == "le" || name.starts_with("__") || (name[0] >= '0' && name[0] <= '9') ||
                std::find(names.begin(), names.end(), name) != names.end()) {
                continue;
            }
            names.push_back(name);
            text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, label_value(value));
        }
    }
    return text;
}

std::string Exposition::series(const std::string& name, const std::string& labels) {
    std::string text = labels.empty() ? name : fmt::format("{}{{{}}}", name, labels);
    if (samples_ >= samples_max_ || text.size() > kSeriesBytesMax || !seen_.insert(text).second) {
        ++left_out_;
        return {};
    }
    ++samples_;
    return text;
}

void Exposition::add_simple(const std::string& name, std::string_view type, std::string_view help, const Labels& labels,
                            MetricValue value) {
    Family* const its = family(name, type, help);
    if (its == nullptr) {
        return;
    }
    if (const std::string text = series(name, labels_text(labels)); !text.empty()) {
        its->samples += fmt::format("{} {}\n", text, value_text_of(value));
    }
}

void Exposition::add_counter(std::string_view name, std::string_view help, const Labels& labels, MetricValue value) {
    add_simple(metric_name(name) + "_total", "counter", help, labels, value);
}

void Exposition::add_gauge(std::string_view name, std::string_view help, const Labels& labels, MetricValue value) {
    add_simple(metric_name(name), "gauge", help, labels, value);
}

void Exposition::add_histogram(std::string_view name, std::string_view help, const Labels& labels,
                               const Buckets& buckets) {
    const std::string whole = metric_name(name);
    Family* const its = family(whole, "histogram", help);
    if (its == nullptr) {
        return;
    }
    const std::string text = labels_text(labels);
    // All of a histogram or nothing: a part of it would be another one.
    constexpr std::size_t kAround = 3;  // the last bucket, the sum and the count
    if (samples_ + buckets.buckets.size() + kAround > samples_max_) {
        left_out_ += buckets.buckets.size() + kAround;
        return;
    }
    const std::string count = series(whole + "_count", text);
    if (count.empty()) {
        return;
    }
    const auto add = [&](const std::string& bound, std::uint64_t n) {
        if (const auto one =
                series(whole + "_bucket", fmt::format("{}{}le=\"{}\"", text, text.empty() ? "" : ",", bound));
            !one.empty()) {
            its->samples += fmt::format("{} {}\n", one, n);
        }
    };
    for (const Buckets::Bucket& bucket : buckets.buckets) {
        add(fmt::format("{}", bucket.most), bucket.count);
    }
    add("+Inf", buckets.count);
    if (const std::string sum = series(whole + "_sum", text); !sum.empty()) {
        its->samples += fmt::format("{} {}\n", sum, buckets.sum);
    }
    its->samples += fmt::format("{} {}\n", count, buckets.count);
}

std::string Exposition::text() const {
    std::size_t bytes = 0;
    for (const auto& [name, its] : families_) {
        bytes += 2 * name.size() + its.help.size() + its.samples.size() + 32;
    }
    std::string text;
    text.reserve(bytes);
    for (const auto& [name, its] : families_) {
        if (!its.samples.empty()) {
            text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, its.help, name, its.type);
            text += its.samples;
        }
    }
    return text;
}

}  // namespace pollcore::stat
