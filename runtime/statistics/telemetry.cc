#include "statistics/telemetry.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <rte_telemetry.h>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "pollcore/error.hpp"
#include "pollcore/statistics.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {
namespace {

// EAL cuts an answer off at 16 KiB, in the middle of its JSON. An answer stays below, with room for names and commas.
constexpr std::size_t kAnswerMax = 14'000;
constexpr std::size_t kNumberBytes = 21;
constexpr std::size_t kAroundValue = 6;  // quotes, colon, comma

struct Command {
    const char* name;
    std::string_view table;
    bool lists;  // all rows, in columns; else one row
    const char* help;
};
// EAL takes 63 characters of help.
constexpr Command kCommands[] = {
    {"/pollcore/runtime", "runtime", false, "Counters of a runtime. Parameter: [INDEX]"},
    {"/pollcore/workers", "worker", true, "Workers. Parameters: [START[,INDEX of the runtime]]"},
    {"/pollcore/worker", "worker", false, "Counters of a worker. Parameters: NAME or number[,INDEX]"},
    {"/pollcore/devices", "device", true, "Devices. Parameters: [START[,INDEX]]"},
    {"/pollcore/device", "device", false, "Figures of a device. Parameters: NAME or number[,INDEX]"},
    {"/pollcore/processes", "process", true, "Attached processes. Parameters: [START[,INDEX]]"},
    {"/pollcore/process", "process", false, "What a process holds. Parameters: NUMBER[,INDEX]"},
    {"/pollcore/sessions", "session", true, "Sessions. Parameters: [START[,INDEX]]"},
    {"/pollcore/session", "session", false, "Figures of a session. Parameters: NUMBER[,INDEX]"},
    {"/pollcore/queue_pairs", "queue_pair", true, "Queue pairs. Parameters: [START[,INDEX]]"},
    {"/pollcore/queue_pair", "queue_pair", false, "Figures of a queue pair. Parameters: NUMBER[,INDEX]"},
};

/// Text without what JSON or a terminal could misread, and not longer than EAL takes.
std::string harmless_text(std::string_view text) {
    const std::string quoted = printable(text);
    return quoted.substr(1, std::min<std::size_t>(quoted.size() - 2, RTE_TEL_MAX_STRING_LEN - 1));
}

/// What a field takes in JSON. EAL escapes quotes and backslashes once more.
std::size_t json_bytes(const ReadField& field, const ReadRow& row, std::size_t at) {
    return field.kind == Kind::text ? 2 * harmless_text(row.texts[at]).size() + kAroundValue
                                    : row.words[at].size() * kNumberBytes;
}

/// An array that EAL frees after it has answered.
struct FreeData {
    void operator()(rte_tel_data* data) const noexcept { rte_tel_data_free(data); }
};
using Array = std::unique_ptr<rte_tel_data, FreeData>;

Array new_array(rte_tel_value_type type) {
    Array array(rte_tel_data_alloc());
    if (array == nullptr) {
        throw Error(ENOMEM, "no memory for an answer");
    }
    rte_tel_data_start_array(array.get(), type);
    return array;
}

void add_array(rte_tel_data* to, const std::string& name, Array array) {
    if (rte_tel_data_add_dict_container(to, name.c_str(), array.get(), 0) == 0) {
        (void)array.release();
    }
}

std::optional<std::uint64_t> number_in(std::string_view text) {
    std::uint64_t number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    return read.ec == std::errc() && read.ptr == text.data() + text.size() && !text.empty() ? std::optional(number)
                                                                                            : std::nullopt;
}

/// All fields of a row.
void add_row(rte_tel_data* to, const ReadTable& table, const ReadRow& row) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < table.fields.size(); ++i) {
        const ReadField& field = table.fields[i];
        bytes += json_bytes(field, row, i) + field.name.size() + kAroundValue;
        if (bytes > kAnswerMax) {
            rte_tel_data_add_dict_u64(to, "left_out_fields", table.fields.size() - i);
            return;
        }
        if (field.kind == Kind::text) {
            rte_tel_data_add_dict_string(to, field.name.c_str(), harmless_text(row.texts[i]).c_str());
        } else if (row.words[i].size() == 1) {
            rte_tel_data_add_dict_u64(to, field.name.c_str(), row.words[i][0]);
        } else {
            Array array = new_array(RTE_TEL_U64_VAL);
            for (const std::uint64_t word : row.words[i]) {
                rte_tel_data_add_array_u64(array.get(), word);
            }
            add_array(to, field.name, std::move(array));
        }
    }
}

std::uint64_t id_of(const ReadRow& row) {
    return row.words[0].empty() ? 0 : row.words[0][0];
}

/// What rows are called and refer to: an array for each field, since EAL knows no lists of dictionaries. Begins with
/// the first row whose number is not less than `start`. "next" is the start of the following answer, if the rows do not
/// fit into one.
void add_rows(rte_tel_data* to, const ReadTable& table, std::uint64_t start) {
    std::vector<std::size_t> columns;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < table.fields.size(); ++i) {
        if (table.fields[i].kind == Kind::id || table.fields[i].kind == Kind::text) {
            columns.push_back(i);
            bytes += table.fields[i].name.size() + kAroundValue;
        }
    }
    std::vector<const ReadRow*> rows;
    for (const ReadRow& row : table.rows) {
        if (id_of(row) >= start) {
            rows.push_back(&row);
        }
    }
    std::sort(rows.begin(), rows.end(), [](const ReadRow* a, const ReadRow* b) { return id_of(*a) < id_of(*b); });
    std::size_t fitting = 0;
    for (; fitting < std::min<std::size_t>(rows.size(), RTE_TEL_MAX_ARRAY_ENTRIES); ++fitting) {
        for (const std::size_t i : columns) {
            bytes += json_bytes(table.fields[i], *rows[fitting], i);
        }
        if (bytes > kAnswerMax) {
            break;
        }
    }
    rte_tel_data_add_dict_u64(to, "rows", table.rows.size());
    if (fitting < rows.size()) {
        rte_tel_data_add_dict_u64(to, "next", id_of(*rows[fitting]));
        rows.resize(fitting);
    }
    for (const std::size_t i : columns) {
        const bool is_text = table.fields[i].kind == Kind::text;
        Array array = new_array(is_text ? RTE_TEL_STRING_VAL : RTE_TEL_U64_VAL);
        for (const ReadRow* const row : rows) {
            if (is_text) {
                rte_tel_data_add_array_string(array.get(), harmless_text(row->texts[i]).c_str());
            } else {
                rte_tel_data_add_array_u64(array.get(), row->words[i].empty() ? 0 : row->words[i][0]);
            }
        }
        add_array(to, table.fields[i].name, std::move(array));
    }
}

void add_header(rte_tel_data* to, const Header& header, std::size_t runtimes) {
    rte_tel_data_add_dict_string(
        to, "name", harmless_text({header.name.data(), ::strnlen(header.name.data(), header.name.size())}).c_str());
    rte_tel_data_add_dict_u64(to, "runtimes", runtimes);
    rte_tel_data_add_dict_u64(to, "began_ns", header.began);
    rte_tel_data_add_dict_u64(to, "updates", header.updates);
    rte_tel_data_add_dict_u64(to, "cycles_per_second", header.cycles_per_second);
}

const ReadRow& row_called(const ReadTable& table, std::string_view wanted) {
    const auto name = table.field("name");
    const auto number = number_in(wanted);
    for (const ReadRow& row : table.rows) {
        if ((name && (table.name == "worker" || table.name == "device") && row.texts[*name] == wanted) ||
            (number && id_of(row) == *number)) {
            return row;
        }
    }
    throw Error(ENOENT, fmt::format("there is no {} {}", table.name, printable(wanted)));
}

void answer(const Command& command, std::string_view parameters, rte_tel_data* to) {
    const std::size_t comma = parameters.find(',');
    const bool of_runtime = command.table == "runtime";
    std::string_view wanted = of_runtime ? "" : parameters.substr(0, comma);
    const std::string_view runtime = of_runtime                        ? parameters
                                     : comma == std::string_view::npos ? ""
                                                                       : parameters.substr(comma + 1);
    const auto index = runtime.empty() ? std::optional<std::uint64_t>(0) : number_in(runtime);
    const std::vector<std::filesystem::path> files = own_segment_files();
    if (files.empty()) {
        throw Error(ENOENT, "there is no runtime with statistics now");
    }
    if (!index || *index >= files.size()) {
        throw Error(EINVAL, fmt::format("there are {} runtimes: INDEX is too large, or no number", files.size()));
    }
    const Snapshot snapshot = read_statistics(files[*index]);
    const ReadTable* const table = snapshot.table(command.table);
    if (table == nullptr) {
        throw Error(ENOENT, "the segment has no such table");
    }
    if (command.lists) {
        const auto start = wanted.empty() ? std::optional<std::uint64_t>(0) : number_in(wanted);
        if (!start) {
            throw Error(EINVAL, "START is no number");
        }
        add_rows(to, *table, *start);
    } else if (of_runtime) {
        add_header(to, snapshot.header, files.size());
        if (!table->rows.empty()) {
            add_row(to, *table, table->rows.front());
        }
    } else {
        add_row(to, *table, row_called(*table, wanted));
    }
}

void add_error(rte_tel_data* to, const char* what) noexcept {
    try {
        rte_tel_data_add_dict_string(to, "error", harmless_text(what).c_str());
    } catch (const std::bad_alloc&) {
        rte_tel_data_add_dict_string(to, "error", "no memory");
    }
}

// EAL calls this from its own threads, in C.
int called_by_eal(const char* name, const char* parameters, rte_tel_data* to) noexcept {
    rte_tel_data_start_dict(to);
    try {
        const auto command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                          [&](const Command& each) { return std::string_view(each.name) == name; });
        if (command == std::end(kCommands)) {
            return -1;
        }
        answer(*command, parameters == nullptr ? "" : parameters, to);
    } catch (const Error& error) {
        add_error(to, error.what());
    } catch (const std::exception&) {
        add_error(to, "no memory");
    }
    return 0;
}

}  // namespace

void offer_telemetry() noexcept {
    static std::once_flag once;
    std::call_once(once, [] {
        for (const Command& command : kCommands) {
            if (const int error = rte_telemetry_register_cmd(command.name, &called_by_eal, command.help); error != 0) {
                log_warning("telemetry does not take the command {}: {}", command.name, std::strerror(-error));
            }
        }
    });
}

}  // namespace pollcore::statistics
