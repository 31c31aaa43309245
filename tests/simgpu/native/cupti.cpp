// CUPTI, which records nothing: all of it is stubs but the text of their error.
extern "C" int cuptiGetResultString(int, const char** text) {
  *text = "CUPTI is not simulated";
  return 0;
}
