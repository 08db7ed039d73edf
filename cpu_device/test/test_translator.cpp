// The translator, form by form: what a piece of CUDA becomes, and what is refused where.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <string_view>

#include "../translator/translate.hpp"

using cpu_device::translate;
using cpu_device::TranslateError;

namespace {

/// The translation without its two lines of header, and a check that every line kept its place.
std::string translated(std::string_view source) {
  const std::string header = "#include <cuda_runtime.h>\n#line 1 \"t.cu\"\n";
  const std::string result = translate(source, "t.cu");
  REQUIRE(result.starts_with(header));
  CHECK(std::ranges::count(result, '\n') == std::ranges::count(source, '\n') + 2);
  return result.substr(header.size());
}

/// What a launch becomes; `kernel` needs no escapes. `name_gap`, `gap`: what is kept of the source
/// after the kernel's tokens and after `>>>`.
std::string launch(const std::string& kernel, const std::string& config,
                   const std::string& arguments, const std::string& name_gap = "",
                   const std::string& gap = "") {
  const std::string pointer = "::cpu_device::kernel_pointer(" + kernel + ", cpu_device_type)";
  return "::cpu_device::launcher(::cpu_device::KernelName{\"" + kernel +
         "\", __FILE__, __LINE__}, [&](auto&... cpu_device_args) { " + kernel +
         "(cpu_device_args...); }, [&](auto cpu_device_type) { if constexpr (requires { " +
         pointer + "; }) return " + pointer + "; else return nullptr; }, " + name_gap +
         "::cpu_device::Config(" + config + "))" + gap + "(" + arguments + ")";
}

std::string in_function(const std::string& text) { return "void f() {\n" + text + "\n}\n"; }

/// The reference to one of the `names` declared by the struct `type`.
std::string reference(const std::string& type, const std::string& names, const std::string& name) {
  const auto before = names.begin() + static_cast<std::ptrdiff_t>((", " + names).find(", " + name));
  return "[[maybe_unused]] auto& " + name + " = ::cpu_device::shared_array<" +
         std::to_string(std::count(names.begin(), before, ',')) + ">(::cpu_device::shared<" + type +
         ">(::cpu_device::SharedName{\"" + names + "\", __FILE__, __LINE__})." + name + ", \"" +
         name + "\");";
}

/// Inside a function, where the declaration has the line 2.
void check_shared(const std::string& source, const std::string& expected) {
  CHECK(translated(in_function(source)) == in_function(expected));
}

void check_error(std::string_view source, int line, int column, std::string_view message) {
  CAPTURE(source);
  try {
    translate(source, "t.cu");
    FAIL_CHECK("accepted");
  } catch (const TranslateError& error) {
    CHECK(error.line == line);
    CHECK(error.column == column);
    CHECK(error.message == message);
  }
}

}  // namespace

TEST_CASE("what is no CUDA syntax is copied") {
  for (const std::string_view source : {
           "",
           "int x;",
           "int x;\n",
           "#include <it's/a.h>\nauto s = \"k<<<1, 1>>>(\";\n",
           "// k<<<1, 1>>>(\n/* __shared__ int x;\n k<<< */ int y;\n",
           "// a comment that goes on \\\n k<<<1, 1>>>(\nint y;\n",
           "auto s = R\"x(\" k<<<1, 1>>>( )\" )x\"; auto t = u8R\"(k<<<)\";\n",
           "f(R\"(\"<<<)\", LR\"(\"<<<)\", uR\"(\"<<<)\", UR\"(\"<<<)\", FR\"(\", R\"\");\n",
           "auto s = \"\\\"k<<<\"; char c = '\\'', d = '\"', e = L'<'; auto t = \"<<<\";\n",
           "auto s = \"a \\\n k<<< \\\r\n k<<<\";\n",
           "int n = 1'000'000 + 0x'f'; double d = 1e+5'0;\n",
           "std::vector<std::vector<std::vector<int>>> v; x >>= 2; y = 1 << 2 <= 3;\n",
           "template <class T> std::ostream& operator<<<T>(std::ostream&, T);\n",
           "friend S& operator<< <int>(S&, T);\n",
           "<<<<<<< HEAD\n=======\n>>>>>>> other\n",
           "#if 0\n<<<\nit's <<< not a launch, __shared__ \"\n#if "
           "1\n<<<\n#else\n<<<\n#endif\n#endif\n",
           "#if 0\n#ifdef A\n#else\n#endif\n#ifndef A\n#endif\n<<<\n#endif\n",
           "#if 1\nint x;\n#else\n<<<\n#define X <<<\n#endif\n",
           "#if false  // never\n<<<\n#elif X\nint x;\n#else\nint y;\n#endif\n",
           "#error don't write k<<<1, 1>>>\n#warning <<<\n#\n# define\n#define EMPTY\n",
           "#pragma once\n#pragma GCC ivdep\n",
           "#define __shared__\n#undef __shared__\n#ifndef __shared__\n#endif\n",
           "int \xc3\xa9t\xc3\xa9 = 1;\r\nint y;\r\n",
       }) {
    CAPTURE(source);
    CHECK(translated(source) == source);
  }
}

TEST_CASE("the header includes the runtime and names the source") {
  CHECK(translate("int x;", "a \"b\"\\c.cu") ==
        "#include <cuda_runtime.h>\n#line 1 \"a \\\"b\\\"\\\\c.cu\"\nint x;");
  CHECK(translated("\xef\xbb\xbf#include <a'b>\nint x;") == "#include <a'b>\nint x;");
}

TEST_CASE("a launch, written out") {
  CHECK(translated("  k<<<grid, 32>>>(x, n);\n") ==
        "  ::cpu_device::launcher(::cpu_device::KernelName{\"k\", __FILE__, __LINE__}, "
        "[&](auto&... cpu_device_args) { k(cpu_device_args...); }, "
        "[&](auto cpu_device_type) { "
        "if constexpr (requires { ::cpu_device::kernel_pointer(k, cpu_device_type); }) "
        "return ::cpu_device::kernel_pointer(k, cpu_device_type); else return nullptr; }, "
        "::cpu_device::Config(grid, 32))(x, n);\n");
}

TEST_CASE("every kind of kernel expression") {
  for (const std::string kernel : {
           "k",
           "::k",
           "a::b::k",
           "::a::b<T>::k",
           "k<float>",
           "k<float, 4, a::b<int>>",
           "k<std::vector<std::vector<std::vector<int>>>>",
           "k<(n > 3), sizeof(T) == 4, 1 << 3, (1 >> 2)>",
           "k<(sizeof(x) > 4)>",
           "k<n <= 3>",
           "k<decltype(f(a[1], b{2})), &S::m>",
           "Foo<T>::template k<U, 2>",
           "object.template k<3>",
           "(k<T>)",
           "(k)",
           "(*pointer)",
           "kernels[i]",
           "kernels[i][j + a[k]]",
           "kernels[i].fn",
           "table.fn",
           "p->fn",
           "p->q[2]->fn",
           "this->fn",
           "choose(a, b)",
           "choose<T>(a)",
           "choose(a)(b)",
           "a::choose<T>(a).fn[0]",
           "static_cast<F*>(p)",
           "k<'>', 1'000, '\\''>",
       }) {
    CAPTURE(kernel);
    std::string text = launch("KERNEL", "1, 2", "x");
    std::string name = kernel;  // as a string literal
    if (const size_t at = name.find('\\'); at != name.npos) name.insert(at, "\\");
    text.replace(text.find("KERNEL"), 6, name);
    for (size_t at; (at = text.find("KERNEL")) != text.npos;) text.replace(at, 6, kernel);
    for (const std::string before :
         {"", "if (x > y) ", "else ", "do ", "x = ", "return ", "(void)", "case 3: ", "a, ", "!",
          "if constexpr (f(x)) ", "while (f(x)) ", "} ", "for (int i = 0; i < n; ++i) "}) {
      CAPTURE(before);
      CHECK(translated(before + kernel + "<<<1, 2>>>(x);") == before + text + ";");
    }
  }
}

TEST_CASE("every kind of launch configuration") {
  for (const std::string config : {
           "1, 2",
           "grid, block, 4 * sizeof(float), stream",
           "dim3{1, 2}, {3, 4}",
           "dim3(1, 2), dim3(3), 0, 0",
           "div_up<int>(n, 4), f<a, b>(3), g<1, 2, 3, 4, 5>()",
           "f<a<b<int>>>(n), 32",
           "(n >> 5) + 1, 1 << 5, n >> 2",
           "n < 4 ? 1 : 2, n > 3 ? 4 : 5",
           "a->grid, '>', strlen(\">>>\")",
           "[&] { return n > 1; }(), 32",
           " 1,\n  2 /* >>> */ ",
           "1, // >>>(\n 2",
           "1, size_of<T>",
           "CONFIG",
           "f<>(), 1",
       }) {
    CAPTURE(config);
    CHECK(translated("k<<<" + config + ">>>(x);") == launch("k", config, "x") + ";");
  }
}

TEST_CASE("every kind of argument list") {
  for (const std::string arguments : {
           "x",
           " x, y ",
           "a < b, c > d",
           "a,\n  b,  // b\n  c",
           "[&](int i) { return i; }(3), {1, 2}, std::vector<int>{1, 2}",
           "(f(x), y), \")\", ')'",
           "args...",
       }) {
    CAPTURE(arguments);
    CHECK(translated("k<<<1, 2>>>(" + arguments + ");") == launch("k", "1, 2", arguments) + ";");
  }
  for (const std::string nothing : {"", " ", "\n", " /* none */ ", "// none\n"}) {
    std::string expected = launch("k", "1, 2", "");
    expected.insert(expected.size() - 1, nothing);
    CHECK(translated("k<<<1, 2>>>(" + nothing + ");") == expected + ";");
  }
}

TEST_CASE("a launch keeps comments and newlines between its parts") {
  CHECK(translated("k <<<1, 2>>> (x);") == launch("k", "1, 2", "x") + ";");
  CHECK(translated("k << < 1, n >> 2 >> > (x);") == launch("k", " 1, n >> 2 ", "x") + ";");
  CHECK(translated("k  <  int >\t<<< 1, 2 >>>\t(x);") == launch("k < int >", " 1, 2 ", "x") + ";");
  CHECK(translated("a::k<  // first\n  int>\r\n<<<1, 2>>>\n  (x);") ==
        launch("a::k< int>", "1, 2", "x", "  // first\n  \r\n", "\n  ") + ";");
  CHECK(translated("k<\n#pragma unroll\n int><<<1, 2>>>(x);") ==
        launch("k< int>", "1, 2", "x", "\n#pragma unroll\n ") + ";");
  CHECK(translated("k /* a */ <<</* b */1, 2/* c */>>> /* d */ (x);") ==
        launch("k", "/* b */1, 2/* c */", "x", " /* a */ ", " /* d */ ") + ";");
}

TEST_CASE("launches and shared declarations inside a launch's arguments") {
  CHECK(translated("a<<<1, 2>>>([&] { b<<<3, 4>>>(y); return 1; }());") ==
        launch("a", "1, 2", "[&] { " + launch("b", "3, 4", "y") + "; return 1; }()") + ";");
  CHECK(translated("CHECK((k<<<1, 2>>>(x))); j<<<3, 4>>>();") ==
        "CHECK((" + launch("k", "1, 2", "x") + ")); " + launch("j", "3, 4", "") + ";");
}

TEST_CASE("a launch after a literal or a conditional") {
  const std::string k = launch("k", "1, 2", "x") + ";";
  for (const std::string before :
       {"R\"x( )\" )x\"; ", "R\"()\"; ", "'\\''; ", "\"\\\\\"; ", "1'000; ", "/**/ ", "it's\n",
        "#if 0\n#if 1\n#endif\n#else\n", "#if 0\n#endif\n", "#ifdef A\n#else\n",
        "#if 1\n#else\n#endif\n", "#if 0\n#elif A\n", "#if 0 + A\n", "#define A \\\n b\n"}) {
    CAPTURE(before);
    CHECK(translated(before + "k<<<1, 2>>>(x);") == before + k);
  }
}

TEST_CASE("launches in macros") {
  CHECK(translated("#define LAUNCH(k) k<<<1, 2>>>()\n") ==
        "#define LAUNCH(k) " + launch("k", "1, 2", "") + "\n");
  CHECK(translated("#  define LAUNCH a::k<<<1, \\\n   2>>>(x); \\\r\n  f() // k<<<\n") ==
        "#  define LAUNCH " + launch("a::k", "1, \\\n   2", "x") + "; \\\r\n  f() // k<<<\n");
  std::string variadic = launch("k<T>", "g, b", "__VA_ARGS__");
  CHECK(translated("#define LAUNCH(k, g, b, ...) k<T> \\\n <<<g, b>>>(__VA_ARGS__)\n") ==
        "#define LAUNCH(k, g, b, ...) " +
            variadic.replace(variadic.find("::cpu_device::Config"), 0, " \\\n ") + "\n");
  CHECK(translated("#define LAUNCH(a, b) a::k_##a##2d_##b<T><<<1, 2>>>(x)\n") ==
        "#define LAUNCH(a, b) " + launch("a::k_##a##2d_##b<T>", "1, 2", "x") + "\n");
  CHECK(translated("#define F (k)<<<1, 2>>>(x)\nint y;") ==
        "#define F " + launch("(k)", "1, 2", "x") + "\nint y;");
}

TEST_CASE("shared declarations") {
  const std::string s = "cpu_device_shared_2_1";
  check_shared("__shared__ float tile[32][33];",
               "struct " + s + " {  float tile[32][33]; }; " + reference(s, "tile", "tile"));
  check_shared("__shared__ int n;", "struct " + s + " {  int n; }; " + reference(s, "n", "n"));
  check_shared("__shared__ float a[N], *b[N], (*c)[3], d;",
               "struct " + s + " {  float a[N], *b[N], (*c)[3], d; }; " +
                   reference(s, "a, b, c, d", "a") + " " + reference(s, "a, b, c, d", "b") + " " +
                   reference(s, "a, b, c, d", "c") + " " + reference(s, "a, b, c, d", "d"));
  for (const std::string declaration : {
           "Pair<int, 3> x[2]",
           "Pair<(a > b), Pair<int, 3>> x",
           "typename T::X x",
           "::a::b<T>::c x[sizeof(T) > 4 ? 1 : 2]",
           "volatile unsigned long long x[4]",
           "const float* x",
           "decltype(a[0]) x[n < 3]",
           "struct { float a; int b[2]; } x[4]",
           "union S { float a; int b; } x",
           "[[maybe_unused]] float x",
           "unsigned char x[a{3}.n]",
           "float // size\n  x[3]",
       }) {
    CAPTURE(declaration);
    check_shared("__shared__ " + declaration + ";",
                 "struct " + s + " {  " + declaration + "; }; " + reference(s, "x", "x"));
  }
}

TEST_CASE("storage classes and alignment of shared declarations in any order") {
  const auto expect = [](const std::string& source, int column, const std::string& fields) {
    const std::string s = "cpu_device_shared_2_" + std::to_string(column);
    check_shared(source, "struct " + s + " { " + fields + "; }; " + reference(s, "x", "x"));
  };
  expect("static __shared__ float x;", 8, "  float x");
  expect("__shared__ static float x;", 1, "  float x");
  expect("float static __shared__ x[3];", 14, "float   x[3]");
  expect("volatile __shared__ float x;", 10, "volatile  float x");
  expect("__shared__ volatile float x;", 1, " volatile float x");
  expect("alignas(16) __shared__ float x;", 13, "alignas(16)   float x");
  expect("__shared__ alignas(16) float x;", 1, "alignas(16)   float x");
  expect("__shared__ __align__(16) float x;", 1, "__align__(16)   float x");
  expect("__shared__ float __align__(sizeof(int) * 2) x[3];", 1,
         "__align__(sizeof(int) * 2)  float  x[3]");
  expect("__shared__ alignas(\n16) float x;", 1, "alignas( 16)  \n float x");
  expect("__attribute__((aligned(8))) __shared__ alignas(float4) float x;", 29,
         "__attribute__((aligned(8))) alignas(float4)    float x");
}

TEST_CASE("where a shared declaration may begin") {
  const auto at = [](int line, int column) {
    const std::string s =
        "cpu_device_shared_" + std::to_string(line) + "_" + std::to_string(column);
    return "struct " + s + " {  int x; }; " + reference(s, "x", "x");
  };
  const std::string x = "__shared__ int x;";
  CHECK(translated("__global__ void k() {" + x + "}") == "__global__ void k() {" + at(1, 22) + "}");
  for (const std::string scope : {
           "namespace a {\nvoid f() {\n",
           "namespace a::b {\nextern \"C\" {\nvoid f() {\n",
           "struct S {\nvoid f() {\n",
           "struct S f() {\n",
           "template <class T, class U = S<(1 > 2)>>\nvoid f(struct S* s) {\n",
           "extern \"C\" __global__ void f() {\n",
           "void f() {\nstruct S { int y; };\n{\n",
           "void f() {\nif (a < b) {\n",
           "auto f = [] {\n",
           "bool S::operator<(S s) {\n",
           "#ifdef A\nvoid f(int) {\n#else\nvoid f() {\n#endif\n",
           "namespace {\n#if A\n}\n#elif B\n}\n#endif\nvoid f() { switch (a) { case 0:\n",
       }) {
    CAPTURE(scope);
    const int line = 1 + static_cast<int>(std::ranges::count(scope, '\n'));
    CHECK(translated(scope + x + "\n") == scope + at(line, 1) + "\n");
  }
  for (const std::string scope :
       {"", "namespace a {", "inline namespace a::b {", "extern \"C\" {", "struct S {",
        "struct alignas(8) __align__(4) S : T<int> {", "template <int N> class S final : T {",
        "union {", "void f() { struct S {", "void f() {} ", "enum class S : int {"}) {
    CAPTURE(scope);
    const int column = 1 + static_cast<int>(scope.size());
    const char* message = "declare shared memory inside the kernel that uses it";
    check_error(scope + x, 1, column, message);
    check_error(scope + "extern " + x, 1, column + 7, message);
  }
}

TEST_CASE("the branches of a conditional begin in the same scope") {
  for (const std::string condition : {"#if A", "#ifdef A", "#ifndef A"}) {
    CAPTURE(condition);
    check_error(condition + "\nvoid f() {\n#if B\n#endif\n#else\nvoid f(int) {\n#endif\n}\n" +
                    "__shared__ int x;",
                9, 1, "declare shared memory inside the kernel that uses it");
  }
}

TEST_CASE("dynamic shared memory") {
  const auto expect = [](const std::string& source, const std::string& alignment,
                         const std::string& template_arguments, const std::string& gaps = "") {
    const std::string type = "cpu_device_shared_2_" + std::to_string(source.find("__shared__") + 1);
    std::string text = "[[maybe_unused]] auto* const s = ::cpu_device::dynamic_shared<" +
                       template_arguments +
                       ">(::cpu_device::SharedName{\"s\", __FILE__, __LINE__})" + gaps + ";";
    if (!alignment.empty()) {
      text = "struct " + alignment + " " + type + " {}; " + text;
      text.replace(text.find("ALIGNMENT"), 9, "alignof(" + type + ")");
    }
    check_shared(source, text);
  };
  expect("extern __shared__ float s[];", "", "float, 0");
  expect("__shared__ extern float s[];", "", "float, 0");
  expect("extern volatile __shared__ unsigned  int s[];", "", "volatile unsigned int, 0");
  expect("extern __shared__ Pair<int, 3>* s[];", "", "Pair<int, 3>*, 0");
  expect("extern __shared__ typename T::X s [];", "", "typename T::X, 0");
  expect("extern __shared__ float s[][4][8];", "", "float[4][8], 0");
  expect("[[maybe_unused]] extern __shared__ float s[];", "", "float, 0");
  expect("extern __shared__ alignas(16) unsigned char s[];", "alignas(16)",
         "unsigned char, ALIGNMENT");
  expect("extern __shared__ __align__(sizeof(T)) T s[];", "__align__(sizeof(T))", "T, ALIGNMENT");
  expect("alignas(T) alignas(float4) extern __shared__ char s[];", "alignas(T) alignas(float4)",
         "char, ALIGNMENT");
  expect("extern __shared__ // bytes\n  float s[];", "", "float, 0", " // bytes\n  ");
}

TEST_CASE("shared declarations in macros") {
  const std::string s = "cpu_device_shared_1_20";
  std::string open_reference = reference(s, "n", "n");
  open_reference.pop_back();
  CHECK(translated("#define S(T, n, e) __shared__ T n[e]\n") ==
        "#define S(T, n, e) struct " + s + " {  T n[e]; }; " + open_reference + "\n");
  CHECK(translated("#define S(a,b,c,d) __shared__ int a##_##b##3[3];\n") ==
        "#define S(a,b,c,d) struct " + s + " {  int a##_##b##3[3]; }; " +
            reference(s, "a##_##b##3", "a##_##b##3") + "\n");
}

TEST_CASE("unroll pragmas become empty lines") {
  CHECK(translated("#pragma unroll\nfor (;;) {}\n") == "\nfor (;;) {}\n");
  CHECK(translated("  #pragma unroll 4  // why\n  # pragma unroll(N + 1)\n#pragma nounroll\n") ==
        "    // why\n  \n\n");
  CHECK(translated("#pragma unroll \\\n  4\n") == " \\\n  \n");
  CHECK(
      translated("_Pragma(\"unroll\") for (;;) _Pragma(\"unroll 4\") for (;;) _Pragma(\"once\")") ==
      " for (;;)  for (;;) _Pragma(\"once\")");
  CHECK(translated("_Pragma(\n\"nounroll\") /* a */ x; _Pragma(\"unroll") ==
        "\n /* a */ x; _Pragma(\"unroll");
  CHECK(translated("#define UNROLL _Pragma(\"unroll\")\n") == "#define UNROLL \n");
}

TEST_CASE("errors say what was expected, and where") {
  const char* kernel = "expected a kernel in front of this '<<<'";
  check_error("<<<1, 2>>>(x);", 1, 1, kernel);
  check_error("int x;\n  return <<<1, 2>>>(x);", 2, 10, kernel);
  check_error("3<<<1, 2>>>(x);", 1, 2, kernel);
  check_error("a) <<<1, 2>>>(x);", 1, 2, "expected a bracket that matches this ')'");
  check_error("a> <<<1, 2>>>(x);", 1, 2, "expected a bracket that matches this '>'");
  check_error("#define ARGS <<<1, 2>>>\n", 1, 14, kernel);

  check_error("f(x, R\"(\n)\")<<<1, 2>>>(x);", 1, 6, "expected a literal that ends on its line");

  check_error("k<<<1, 2;\nint x;", 1, 9,
              "expected '>>>' before this to end the launch configuration");
  check_error("f(k<<<1, 2)", 1, 11, "expected '>>>' before this to end the launch configuration");
  check_error("k<<<1, 2>>(x", 1, 11, "expected a bracket that matches this '('");
  check_error("k<<<1, 2", 1, 2, "expected '>>>' to end the launch configuration that begins here");
  check_error("k<<<1, (2]>>>(x);", 1, 8, "expected a bracket that matches this '('");

  check_error("k<<<>>>(x);", 1, 5, "expected a launch parameter in front of this '>>>'");
  check_error("k<<<1, >>>(x);", 1, 8, "expected a launch parameter in front of this '>>>'");
  check_error("k<<<, 2>>>(x);", 1, 5, "expected a launch parameter in front of this ','");
  check_error("k<<<1, , 3>>>(x);", 1, 8, "expected a launch parameter in front of this ','");
  check_error("k<<<1, 2, 3, 4, 5>>>(x);", 1, 15,
              "expected at most 4 launch parameters: grid, block, shared bytes, stream");

  const char* arguments = "expected '(' and the kernel's arguments after this '>>>'";
  check_error("k<<<1, 2>>>;", 1, 9, arguments);
  check_error("k<<<1,\n2>>>", 2, 2, arguments);
  check_error("k<<<1, 2>>>(x;", 1, 12, "expected a bracket that matches this '('");
  check_error("k<<<1, 2>>>((x);", 1, 12, "expected a bracket that matches this '('");
  check_error("k<<<1, 2>>>([x)]);", 1, 12, "expected a bracket that matches this '('");
  check_error("#define L(k) k<<<1, 2>>>(\n);\n", 1, 25, "expected a bracket that matches this '('");

  const char* form = "expected __shared__ TYPE NAME[SIZE];";
  check_error("void f() { __shared__ x; }", 1, 12, form);
  check_error("void f() { __shared__ ; }", 1, 12, form);
  check_error("void f() { __shared__ float a, ; }", 1, 12, form);
  check_error("void f() { __shared__ Pair<int>; }", 1, 12, form);
  check_error("#define SHARED __shared__\n", 1, 16, form);
  const char* initialiser = "shared memory cannot have an initialiser";
  check_error("void f() { __shared__ int x = 3; }", 1, 29, initialiser);
  check_error("void f() { __shared__ int a, b{3}; }", 1, 31, initialiser);
  check_error("void f() { __shared__ int x(3); }", 1, 12, initialiser);
  check_error("void f() { __shared__ int x }", 1, 29,
              "expected ';' before this to end the shared declaration");
  check_error("void f() { __shared__ int x", 1, 12,
              "expected ';' to end the shared declaration that begins here");
  check_error("void f() { __shared__ int x[3; }", 1, 28,
              "expected a bracket that matches this '['");
  check_error("void f() { __shared__ A<int x; }", 1, 24,
              "expected a bracket that matches this '<'");
  const char* dynamic = "expected extern __shared__ TYPE NAME[];";
  check_error("void f() { extern __shared__ int x; }", 1, 19, dynamic);
  check_error("void f() { extern __shared__ int x[3]; }", 1, 19, dynamic);
  check_error("void f() { extern __shared__ int a[], b[]; }", 1, 19, dynamic);
  check_error("void f() { extern __shared__ int (*x)[]; }", 1, 19, dynamic);
}

TEST_CASE("unfinished text ends somewhere") {
  for (const std::string_view source :
       {"/* k<<<", "\"k<<<", "'", "R\"(k<<<", "R\"k<<<", "R\"", "// k<<< \\\n", "\\", "#", "#if",
        "#if 0", "#endif", "#else\n<<<", "}", "1'", "u8", "#include <k<<<", "auto s = \"\\"}) {
    CAPTURE(source);
    if (source == "#else\n<<<") {
      CHECK_THROWS_AS(translate(source, "t.cu"), TranslateError);
    } else {
      CHECK(translated(source) == source);
    }
  }
}

TEST_CASE("the time is linear in the length") {
  std::string source = "namespace a {\n";
  const auto add = [&](const std::string& text, size_t bytes) {
    for (const size_t end = source.size() + bytes; source.size() < end;) source += text;
  };
  add("void f() {\n  __shared__ float s[3];\n  k<T><<<f(n), 2>>>(x, y);\n}\n", 300'000);
  add("x = a < b + c(d) * 2;  // comment\n", 300'000);
  add("#if A\n", 100'000);
  add("{", 100'000);
  add("f(", 200'000);
  const auto seconds = [](std::string_view text) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string result = translate(text, "t.cu");
    CHECK(result.size() > text.size());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  CHECK(seconds(source) < 10.0);  // 20 ms when optimised; a quadratic step takes minutes
}

namespace {

/// A header of a program that is not this project's: it has mine.h, translated to /build/mine.h.
std::string of_program(std::string_view source) {
  const auto find = [](std::string_view name, bool is_quoted) {
    return name == "mine.h" ? std::string(is_quoted ? "/build/mine.h" : "/build/other.h") : "";
  };
  const std::string header = "#line 1 \"t.cuh\"\n";
  std::set<std::string> missing;
  const std::string result = translate(source, "t.cuh", {true, find, &missing});
  REQUIRE(result.starts_with(header));
  CHECK(std::ranges::count(result, '\n') == std::ranges::count(source, '\n') + 1);
  return result.substr(header.size());
}

std::string missing(const std::string& what) {
  return "_Pragma(\"GCC error \\\"the CPU device has no " + what + "\\\"\") ";
}

}  // namespace

TEST_CASE("a kernel that is called as if it were a function is refused by the compiler") {
  const auto refused = [](const std::string& name, const std::string& call) {
    return "{ static_assert(!noexcept(" + call + "), \"" + name +
           " is a kernel, which has to be launched: " + name + "<<<blocks, threads>>>(...)\"); " +
           call + "; }";
  };
  const std::string body =
      "__global__ void k(int n);\n__global__ __launch_bounds__(9) void k(int n)";
  const std::string marked =
      "__global__ void k(int n) noexcept;\n__global__ __launch_bounds__(9) void k(int n) noexcept";
  for (const std::string call : {"k(1)", "::k(1)", "a::b::k(1)", "k<int, 3>(f(1), {2})"}) {
    CHECK(translated(body + " {}\nvoid f() { " + call + "; }\n") ==
          marked + " {}\nvoid f() { " + refused("k", call) + " }\n");
    CHECK(translated(body + ";\nvoid f() { if (x) " + call + "; else " + call + "; }\n") ==
          marked + ";\nvoid f() { if (x) " + refused("k", call) + " else " + refused("k", call) +
              " }\n");
  }
  // What calls nothing, or something else, changes nothing.
  for (const std::string use :
       {"auto g = k;", "g(k);", "x.k(1);", "p->k(1);", "return k(1);", "return ::k(1);",
        "(void)k(1);", "m(1);", "int k(1);", "auto k = [](int) {};", "k;", "x = k(1);",
        "k(1), k(2);", "void k(int);", "k(\n#if X\n1\n#endif\n);", "a<b>(1) > k(1);"}) {
    const std::string source = body + " {}\nvoid f() { " + use + " }\n";
    CHECK(translated(source) == source);
  }
  // A name that a macro makes, a kernel that is declared later, a call outside of functions.
  for (const std::string& source :
       {std::string("__global__ void NAME(k)(int n) {}\nvoid f() { k(1); }"),
        "void f() { k(1); }\n" + body + ";", body + ";\nint x = k(1);",
        body + ";\nvoid k(int, int);"}) {
    CHECK(translated(source) == source);
  }
}

TEST_CASE("another's program includes its own headers translated") {
  CHECK(of_program("#include \"mine.h\"\n#include <vector>\n") ==
        "#include \"/build/mine.h\"\n#include <vector>\n");
  CHECK(of_program("#include <mine.h>  // why\n") == "#include \"/build/other.h\"  // why\n");
  std::set<std::string> none;
  CHECK(translate("int i;", "a.cu", {false, [](auto, auto) { return ""; }, &none}) ==
        "#include <cpu_device/program.h>\n#line 1 \"a.cu\"\nint i;");
}

TEST_CASE("what the CPU device lacks altogether is named by the compiler, where it is compiled") {
  // A library's header is left out, and its names are looked for.
  CHECK(of_program("int thrust;\n#include <thrust/sort.h>\nint thrust_;\nauto f = thrust::sort;") ==
        "int thrust;\n\nint thrust_;\nauto f = " + missing("Thrust") + "thrust::sort;");
  CHECK(of_program("#include <cublas_v2.h>\n#define F cublasCreate\ncublasHandle_t h; int x;") ==
        "\n#define F " + missing("cuBLAS") + "cublasCreate\n" + missing("cuBLAS") +
            "cublasHandle_t h; int x;");
  CHECK(of_program("cublasHandle_t h;") == "cublasHandle_t h;");  // of a header of its own
  CHECK(of_program("x = tex2D<float>(t, 1, 2);") ==
        "x = " + missing("textures") + "tex2D<float>(t, 1, 2);");
  const std::string nested = of_program("__global__ void k() { if (a) k<<<1, 2>>>(); }");
  CHECK(nested.starts_with("__global__ void k() { if (a) " + missing("launches from kernels")));
  CHECK(of_program("__device__ void f() { asm(\"x\"); }") ==
        "__device__ void f() { " + missing("inline PTX") + "asm(\"x\"); }");
  CHECK(of_program("void f() { asm(\"x\"); }") == "void f() { asm(\"x\"); }");
}

TEST_CASE("conditions on __CUDA_ARCH__ are the device's where no host is meant") {
  const std::string condition = "#if __CUDA_ARCH__ >= 700\n;\n#endif\n";
  const std::string of_device = "#if CPU_DEVICE_ARCH >= 700\n;\n#endif\n";
  CHECK(of_program(condition) == of_device);
  for (const std::string qualifier : {"__global__", "__device__"}) {
    CHECK(of_program(qualifier + " void f() {\n" + condition + "}") ==
          qualifier + " void f() {\n" + of_device + "}");
  }
  CHECK(of_program("__device__ void f() {\n#ifdef __CUDA_ARCH__\n;\n#endif\n}") ==
        "__device__ void f() {\n#ifdef CPU_DEVICE_ARCH\n;\n#endif\n}");
  for (const std::string& both : {"__host__ __device__ void f() {\n" + condition + "}",
                                  std::string("#ifdef __CUDA_ARCH__\n;\n#endif\n"),
                                  std::string("#if defined(__CUDA_ARCH__)\n;\n#endif\n")}) {
    CHECK(of_program(both) == both);
  }
}

TEST_CASE("other forms of programs from elsewhere") {
  CHECK(of_program("extern __shared__ float s[];\n") == "CPU_DEVICE_DYNAMIC_SHARED(s, float);\n");
  CHECK(of_program("void f() { cudaLaunchKernel((const void*)k, 1, 2, a); }") ==
        "void f() { cudaLaunchKernel(k, 1, 2, a); }");
  CHECK(of_program("void f() { k<<<1, 2>>>(a, NULL); }").ends_with("(1, 2))(a, nullptr); }"));
  CHECK(of_program("void f() { cudaLaunchKernelExC(&c, (void*)k, a); }") ==
        "void f() { cudaLaunchKernelExC(&c, k, a); }");
  CHECK(of_program("__global__ void __cluster_dims__(2, 1, 1) k(int n);\n"
                   "void f() { k<<<1, 2>>>(a); }")
            .ends_with("(1, 2).with_cluster(2, 1, 1))(a); }"));
  // Shared memory outside of functions: each that uses the name has the reference.
  const std::string declared = "struct cpu_device_shared_1_1 {  int x[3], y; };\n";
  const std::string refers = reference("cpu_device_shared_1_1", "x, y", "x");
  CHECK(of_program("__shared__ int x[3], y;\n__global__ void k() { { x[0] = y; } }\n"
                   "__device__ void none() { z = 0; }\n__device__ void own(int* x) { *x = 0; }\n"
                   "void host() { int x; }") ==
        declared + "__global__ void k() {; " + refers + " " +
            reference("cpu_device_shared_1_1", "x, y", "y") +
            " { x[0] = y; } }\n__device__ void none() { z = 0; }\n"
            "__device__ void own(int* x) { *x = 0; }\nvoid host() { int x; }");
  CHECK(of_program("__noinline__ void f();") == "__attribute__((noinline)) void f();");
  CHECK(of_program("__attribute__((__noinline__)) void f();") ==
        "__attribute__((__noinline__)) void f();");
}
