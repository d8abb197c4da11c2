#include "pollperf/report/demands.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "pollperf/report/intervals.hpp"
#include "pollperf/report/json_document.hpp"
#include "pollperf/report/text_report.hpp"

namespace pollcore::perf {
namespace {

using PlainJson = nlohmann::json;

std::optional<double> number_at(const PlainJson& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}
std::string text_at(const PlainJson& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// A figure that is compared with the baseline.
struct Compared {
    const char* name;
    const char* object;  ///< of the result, that has the key; nullptr: the result itself
    const char* key;
    const char* unit;
    bool larger_is_worse;
    double (*now)(const Measurement&);
};
constexpr Compared kTypical{
    "the typical latency",
    "latency_ns",
    "typical",
    "ns",
    true,
    [](const Measurement& one) { return one.percentile_ns(0.5); },
};
constexpr Compared kP99{
    "the 99 % latency", "latency_ns", "p99", "ns", true, [](const Measurement& one) { return one.percentile_ns(0.99); },
};
constexpr Compared kBytes{
    "the bandwidth", nullptr, "bytes_per_s", "bytes/s", false, [](const Measurement& one) { return one.bytes_per_s(); },
};
constexpr Compared kOperations{
    "the rate",     nullptr, "operations_per_s",
    "operations/s", false,   [](const Measurement& one) { return one.operations_per_s(); },
};

std::vector<Compared> compared_figures(Test test) {
    switch (test) {
        case Test::lat: return {kTypical, kP99};
        case Test::bw: return {kBytes};
        case Test::rate: return {kOperations};
    }
    return {};
}

std::optional<double> baseline_figure(const PlainJson& result, const Compared& figure) {
    if (figure.object == nullptr) {
        return number_at(result, figure.key);
    }
    const auto object = result.find(figure.object);
    return object != result.end() ? number_at(*object, figure.key) : std::nullopt;
}

std::optional<Test> test_of(const PlainJson& baseline) {
    const std::string program = text_at(baseline, "program");
    for (const Test test : {Test::lat, Test::bw, Test::rate}) {
        if (program == fmt::format("pollperf {}", test_name(test))) {
            return test;
        }
    }
    return std::nullopt;
}

std::string result_label(const PlainJson& result) {
    return fmt::format("{}, {:.0f} bytes, {}", text_at(result, "op"), number_at(result, "bytes").value_or(0),
                       text_at(result, "path"));
}

// What is wrong with the content of a baseline, or nothing.
std::string fault_of(const PlainJson& baseline) {
    const std::string program = text_at(baseline, "program");
    if (!program.starts_with("pollperf ")) {
        return "is not a result of pollperf";
    }
    const auto test = test_of(baseline);
    if (!test) {
        return fmt::format("is a result of {}, and only pollperf lat, bw and rate have a baseline", program);
    }
    const auto format = number_at(baseline, "format");
    if (format != kJsonFormat) {
        return fmt::format("has format {}, and this version of pollperf reads format {}",
                           format ? fmt::format("{}", *format) : "unknown", kJsonFormat);
    }
    const auto results = baseline.find("results");
    if (results == baseline.end() || !results->is_array() || results->empty()) {
        return "has no results";
    }
    for (const PlainJson& result : *results) {
        if (text_at(result, "op").empty() || text_at(result, "path").empty() || !number_at(result, "bytes")) {
            return "has a result without operation, path or size";
        }
        for (const Compared& figure : compared_figures(*test)) {
            const auto value = baseline_figure(result, figure);
            if (!value || *value <= 0) {
                return fmt::format("has no figure for {} of {}", figure.name, result_label(result));
            }
        }
    }
    return "";
}

// Whether both measured the same. What a baseline does not say does not count as a difference. `inline` is left out: it
// is how a message was posted, and a faster way to post should not lose its baseline.
bool is_counterpart(const PlainJson& result, const Measurement& one) {
    const auto same_number = [&](std::string_view key, double value) {
        const double before = number_at(result, key).value_or(value);
        return std::abs(before - value) <= 1e-6 * std::max(std::abs(before), std::abs(value));
    };
    const auto same_flag = [&](std::string_view key, bool value) {
        const auto found = result.find(key);
        return found == result.end() || !found->is_boolean() || found->get<bool>() == value;
    };
    const std::string transport = text_at(result, "transport");
    // Without offered_per_s, it was a closed loop.
    const double offered = number_at(result, "offered_per_s").value_or(0);
    return text_at(result, "op") == op_name(one.op) && text_at(result, "path") == path_name(one.path) &&
           (transport.empty() || transport == transport_name(one.transport)) && same_number("bytes", one.size) &&
           same_number("queue_pairs", one.queue_pairs) && same_number("sessions", one.sessions) &&
           same_number("tx_depth", one.tx_depth) && same_number("post_list", one.post_list) &&
           same_number("signal_every", one.signal_every) && same_flag("verified", one.verified) &&
           (!result.contains("flow") || text_at(result, "flow") == flow_control_name(one.flow)) &&
           same_number("threads", one.threads) && same_number("workers", one.workers) &&
           same_flag("bidirectional", one.bidirectional) && same_flag("half_round_trip", one.half_round_trip) &&
           std::abs(offered - one.offered_per_s) <= 1e-6 * std::max(offered, one.offered_per_s);
}

// 250.0, but 12345678.
std::string rounded(double value) {
    return fmt::format("{:.{}f}", value, std::abs(value) < 1e5 ? 1 : 0);
}

void compare(std::vector<std::string>& sentences, const Results& results, const PlainJson& baseline, double tolerance) {
    if (!comparable(baseline, results.test)) {
        sentences.push_back(fmt::format("the baseline is of {}, and this is pollperf {}: nothing was compared",
                                        text_at(baseline, "program"), test_name(results.test)));
        return;
    }
    for (const PlainJson& result : baseline.at("results")) {
        const auto found = std::ranges::find_if(results.measurements,
                                                [&](const Measurement& one) { return is_counterpart(result, one); });
        if (found == results.measurements.end()) {
            sentences.push_back(
                fmt::format("{}: the baseline has it, and this run has nothing of the same operation, "
                            "size, path, transport, connections and load",
                            result_label(result)));
            continue;
        }
        for (const Compared& figure : compared_figures(results.test)) {
            const auto before = baseline_figure(result, figure);
            if (!before || *before <= 0) {
                sentences.push_back(fmt::format("{}: the baseline has no figure for {}", label(*found), figure.name));
                continue;
            }
            if (figure.larger_is_worse ? found->latency.count() == 0 : found->operations_per_s() <= 0) {
                sentences.push_back(fmt::format("{}: there are no samples to compare {} with the baseline's {} {}",
                                                label(*found), figure.name, rounded(*before), figure.unit));
                continue;
            }
            const double now = figure.now(*found);
            const double worse = (figure.larger_is_worse ? now - *before : *before - now) / *before;
            if (!(worse <= tolerance)) {
                sentences.push_back(fmt::format(
                    "{}: {} is {} {}, {:.1f} % {} than the baseline's {} {}; {:g} % are allowed", label(*found),
                    figure.name, rounded(now), figure.unit, 100 * worse, figure.larger_is_worse ? "more" : "less",
                    rounded(*before), figure.unit, 100 * tolerance));
            }
        }
    }
}

}  // namespace

PlainJson read_baseline(const std::filesystem::path& path) {
    const auto refuse = [&](const std::string& why) {
        throw std::invalid_argument(fmt::format("the baseline {} {}", path.string(), why));
    };
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
        refuse("is a directory");
    }
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        refuse(fmt::format("cannot be read: {}", std::strerror(errno != 0 ? errno : ENOENT)));
    }
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    PlainJson baseline = PlainJson::parse(content, nullptr, false);
    if (baseline.is_discarded()) {
        refuse("is not JSON");
    }
    if (const std::string fault = fault_of(baseline); !fault.empty()) {
        refuse(fault);
    }
    return baseline;
}

bool comparable(const PlainJson& baseline, Test test) {
    const auto results = baseline.is_object() ? baseline.find("results") : baseline.end();
    return test_of(baseline) == test && results != baseline.end() && results->is_array() && !results->empty();
}

std::vector<std::string> missed(const Results& results, const Demands& demands) {
    std::vector<std::string> sentences;
    const bool any = demands.bytes_per_s_least || demands.operations_per_s_least || demands.p99_ns_most;
    if (any && results.measurements.empty()) {
        sentences.push_back("nothing was measured, so no demand is met");
    }
    const auto at_least = [&](const Measurement& one, const char* name, const char* unit, double now, double least) {
        if (one.operations_per_s() <= 0) {
            sentences.push_back(fmt::format("{}: there are no samples for {}, and {} {} are demanded", label(one), name,
                                            rounded(least), unit));
        } else if (!(now >= least)) {
            sentences.push_back(fmt::format("{}: {} is {} {}, {:.1f} % less than the demanded {} {}", label(one), name,
                                            rounded(now), unit, 100 * (least - now) / least, rounded(least), unit));
        }
    };
    for (const Measurement& one : results.measurements) {
        if (demands.bytes_per_s_least) {
            at_least(one, kBytes.name, kBytes.unit, one.bytes_per_s(), *demands.bytes_per_s_least);
        }
        if (demands.operations_per_s_least) {
            at_least(one, kOperations.name, kOperations.unit, one.operations_per_s(), *demands.operations_per_s_least);
        }
        if (demands.p99_ns_most) {
            const double most = *demands.p99_ns_most, now = one.percentile_ns(0.99);
            if (one.latency.count() == 0) {
                sentences.push_back(fmt::format("{}: there are no samples for {}, and at most {} ns are demanded",
                                                label(one), kP99.name, rounded(most)));
            } else if (!(now <= most)) {
                sentences.push_back(fmt::format("{}: {} is {} ns, {:.1f} % more than the demanded {} ns", label(one),
                                                kP99.name, rounded(now), 100 * (now - most) / most, rounded(most)));
            }
        }
    }
    if (demands.baseline) {
        compare(sentences, results, *demands.baseline, demands.tolerance);
    }
    return sentences;
}

}  // namespace pollcore::perf
